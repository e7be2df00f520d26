"""The chain of the audit log: each entry gets a seal, and each seal the hash of the one before it.

Entries are sealed shortly after they are committed, by one periodic task. A lock that each entry would take at the head
of the chain would make all audited changes wait for each other (docs/adr/0055-the-audit-log-is-chained.md).
"""

from __future__ import annotations

import hashlib
from typing import Any

from django.db import connection, transaction

from tenants.models import AuditSeal

BATCH = 1000
LATE = 10_000
"""An entry may be committed after this many later ones and still be sealed."""
DIGEST = """encode(sha256(convert_to(jsonb_build_array(e.id, e.tenant_id, {actor}, e.action, e.target, e.reason,
  e.details, e.request_id, host(e.address), extract(epoch from e.at))::text, 'UTF8')), 'hex')"""
"""SQL: the digest of entry e. The actor is the seal's: who did it may be forgotten when a user is removed."""
IS_UNSEALED = f"""e.id > coalesce((SELECT max(entry_id) FROM tenants_auditseal), 0) - {LATE}
  AND NOT EXISTS (SELECT 1 FROM tenants_auditseal s WHERE s.entry_id = e.id)"""
"""SQL: entry e is still to be sealed."""
UNSEALED = f"""
SELECT e.id, e.actor_id, {DIGEST.format(actor="e.actor_id")} FROM tenants_auditentry e
WHERE {IS_UNSEALED}
ORDER BY e.id LIMIT {BATCH}"""
REMOVAL = "retention.audit"
"""The action of the entries in which retention says how many others it has removed; it removes none of these."""
UNRECORDED = f"""
SELECT format('%s entries are marked as removed by retention, which recorded %s', marked, recorded)
FROM (SELECT count(*) AS marked FROM tenants_auditseal WHERE removed) m,
  (SELECT coalesce(sum((details->>'entries')::bigint), 0) AS recorded FROM tenants_auditentry
   WHERE action = '{REMOVAL}' AND jsonb_typeof(details->'entries') = 'number') r
WHERE marked > recorded"""
"""SQL: one row of text if a mark covers an entry that another hand removed."""
BROKEN = f"""
WITH chain AS (SELECT s.*, lag(s.n) OVER w AS last_n, lag(s.hash) OVER w AS last_hash FROM tenants_auditseal s
  WINDOW w AS (ORDER BY s.n))
SELECT format('seal %s follows seal %s', n, coalesce(last_n, 0)) FROM chain WHERE n <> coalesce(last_n, 0) + 1
UNION ALL SELECT format('seal %s does not continue the seal before it', n) FROM chain
  WHERE hash <> encode(sha256(convert_to(format('%s:%s:%s', n, coalesce(last_hash, ''), digest), 'UTF8')), 'hex')
UNION ALL SELECT format('entry %s, seal %s: removed by no retention rule', s.entry_id, s.n) FROM tenants_auditseal s
  WHERE NOT s.removed AND NOT EXISTS (SELECT 1 FROM tenants_auditentry e WHERE e.id = s.entry_id)
UNION ALL SELECT format('entry %s, seal %s: changed', e.id, s.n) FROM tenants_auditseal s
  JOIN tenants_auditentry e ON e.id = s.entry_id
  WHERE s.digest <> {DIGEST.format(actor="s.actor_id")} OR e.actor_id IS DISTINCT FROM s.actor_id
    AND (e.actor_id IS NOT NULL OR EXISTS (SELECT 1 FROM tenants_user u WHERE u.id = s.actor_id))
UNION ALL {UNRECORDED}
UNION ALL SELECT format('entry %s: not in the chain', e.id) FROM tenants_auditentry e
  WHERE e.id <= (SELECT max(entry_id) FROM tenants_auditseal) - {LATE}
  AND NOT EXISTS (SELECT 1 FROM tenants_auditseal s WHERE s.entry_id = e.id)"""
"""SQL for jobs.invariants: one row of text for each gap or change."""


def unrecorded() -> str:
    """That more entries are marked as removed than retention says it removed; empty if not."""
    with connection.cursor() as cursor:
        cursor.execute(UNRECORDED)
        found = cursor.fetchone()
    return found[0] if found else ""


def head() -> int:
    """The last place in the chain; 0: it is empty."""
    last = AuditSeal.objects.order_by("-n").values_list("n", flat=True).first()
    return last or 0


def seal_new() -> dict[str, Any]:
    """Seal up to BATCH entries; the head of the chain then: n, hash, and more: whether entries may be left."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(
            "LOCK TABLE tenants_auditseal IN SHARE ROW EXCLUSIVE MODE"
        )  # one process seals at a time
        head = AuditSeal.objects.order_by("-n").first()
        n, last = (head.n, head.hash) if head else (0, "")
        cursor.execute(UNSEALED)
        found = cursor.fetchall()
        made = []
        for entry_id, actor_id, digest in found:
            n, last = n + 1, hashlib.sha256(f"{n + 1}:{last}:{digest}".encode()).hexdigest()
            made.append(AuditSeal(n=n, entry_id=entry_id, actor_id=actor_id, digest=digest, hash=last))
        AuditSeal.objects.bulk_create(made)
    return {"n": n, "hash": last, "more": len(found) == BATCH}
