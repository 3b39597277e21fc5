"""Which rank holds which elements: nested ZeRO-3, ZeRO-2 and ZeRO-1 shards of flattened tensor lists, as plain integers."""
