-- Search by an index, without extensions: texts by all their parts of one to three characters (n-grams). It belongs to the
-- migration of its number: change it by a new migration only.
-- The terms of a row, or of what is sought: parts of `shortest` to three characters (n-grams) of its texts, and marks,
-- which are longer. Upper case, as LIKE compares it (Django's icontains). In PL/pgSQL, which takes 11 us for a short name
-- (SQL: 105 us), and without calling other functions of ours: an index is restored with another search path.
CREATE FUNCTION search_terms(shortest integer, tenant bigint, person bigint, words text[], VARIADIC texts text[])
RETURNS text[] LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
  terms text[] := '{}';
  source text;
  word text;
BEGIN
  FOREACH source IN ARRAY texts LOOP
    source := upper(source);
    FOR size IN shortest..3 LOOP
      FOR place IN 1..coalesce(char_length(source), 0) - size + 1 LOOP
        terms := terms || substr(source, place, size);
      END LOOP;
    END LOOP;
  END LOOP;
  FOREACH word IN ARRAY words LOOP
    terms := terms || ('word:' || word);
  END LOOP;
  IF tenant IS NOT NULL THEN
    terms := terms || ('tenant:' || tenant);
  END IF;
  IF person IS NOT NULL THEN
    terms := terms || ('person:' || person);
  END IF;
  RETURN terms;
END $$;
