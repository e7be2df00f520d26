"""The portal's pages, server-rendered. Scripts fetch a page again and morph its parts (static/src/ts/parts.ts)."""
