-- Calls every command that the other functions call, on keys of its own, and removes them. Redis checks the rights of the
-- user for each command inside a function, so a commit of a user who lacks one would stop in the middle. Whoever may run
-- this may run the others to their end.
--
-- Keys: the holder. Arguments: none. Reply: the server's time.
-- Atomicity: if a right is missing, it fails on the way and may leave PREFIXprobe:hash and PREFIXprobe:zset behind, which
-- nothing else uses.
local function probe(keys)
    local prefix = prefix_of(keys[1])
    local hash, zset = prefix .. 'probe:hash', prefix .. 'probe:zset'
    redis.call('EXISTS', keys[1])
    redis.call('TYPE', hash)
    redis.call('HSET', hash, 'field', 'value')
    redis.call('HEXISTS', hash, 'field')
    redis.call('HGET', hash, 'field')
    redis.call('HMGET', hash, 'field')
    redis.call('HDEL', hash, 'field')
    redis.call('ZADD', zset, '0', 'member')
    redis.call('ZRANGE', zset, '-', '+', 'BYLEX', 'LIMIT', 0, 1)
    redis.call('ZREM', zset, 'member')
    return wall()
end

redis.register_function { function_name = NAME .. '_probe', callback = probe, flags = { 'allow-oom' } }
