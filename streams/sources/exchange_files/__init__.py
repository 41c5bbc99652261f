"""Files of exchanges: tables of any columns by a mapping, exports of other programs and our own. No database, no topics."""
