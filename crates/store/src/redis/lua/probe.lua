-- Calls every command that the other functions call, on keys of its own, and removes them. Redis checks the rights of the
-- user for each command inside a function, so a commit of a user who lacks one would stop in the middle. Whoever may run
-- all of these may run the other functions to their end.
--
-- Keys: the holder. Arguments: none.
-- Reply: {1}, or {0, command, why} for the first command that cannot be run.
-- Atomicity: if a command cannot be run, PREFIXprobe:hash and PREFIXprobe:zset may be left behind; nothing else uses them.
local function probe(keys)
    local prefix = prefix_of(keys[1])
    local hash, zset = prefix .. 'probe:hash', prefix .. 'probe:zset'
    local calls = {
        { 'TIME' },
        { 'EXISTS', keys[1] },
        { 'TYPE', hash },
        { 'HSET', hash, 'field', 'value' },
        { 'HEXISTS', hash, 'field' },
        { 'HGET', hash, 'field' },
        { 'HMGET', hash, 'field' },
        { 'HDEL', hash, 'field' },
        { 'ZADD', zset, '0', 'member' },
        { 'ZRANGE', zset, '-', '+', 'BYLEX', 'LIMIT', 0, 1 },
        { 'ZREM', zset, 'member' },
    }
    for _, call in ipairs(calls) do
        local reply = redis.pcall(unpack(call))
        if type(reply) == 'table' and reply.err then
            return { 0, call[1], reply.err }
        end
    end
    return { 1 }
end

redis.register_function { function_name = NAME .. '_probe', callback = probe, flags = { 'allow-oom' } }
