-- Who holds the store. All of these may run when Redis is out of memory: they add next to nothing.
-- Atomicity: each looks at the holder first and then either writes everything or nothing.

-- The terms of which the last commit is remembered.
local TERMS = 1000

-- Writes a new term and what the last commit before it was. Returns {1, term, commit, clock, the server's time}.
local function raise(keys, held, nonce, node)
    local term, now = text(tonumber(held.term) + 1), wall()
    redis.call('HSET', keys[1], 'term', term, 'nonce', nonce, 'node', node, 'seen_at', text(now))
    redis.call('HSET', keys[2], term, held.commit)
    redis.call('HDEL', keys[2], text(tonumber(term) - TERMS))
    return { 1, term, held.commit, held.clock, now }
end

-- The holder, or nil if there is no store.
local function read(holder)
    local got = redis.call('HMGET', holder, 'term', 'nonce', 'commit', 'clock', 'seen_at', 'node')
    if not got[1] then
        return nil
    end
    return { term = got[1], nonce = got[2], commit = got[3], clock = got[4], seen_at = got[5], node = got[6] }
end

-- Creates the store if there is none.
-- Keys: the holder. Arguments: the version of the format, the audit key or nothing, the fingerprint of the audit key.
-- Reply: {version, audit key, fingerprint} as stored.
local function create(keys, args)
    if redis.call('EXISTS', keys[1]) == 0 then
        redis.call('HSET', keys[1], 'version', args[1], 'audit_key', args[2], 'fingerprint', args[3],
            'term', '0', 'nonce', '', 'node', '', 'commit', '0', 'clock', '0', 'seen_at', '0')
    end
    return redis.call('HMGET', keys[1], 'version', 'audit_key', 'fingerprint')
end

-- Takes the store if nobody holds it or if the holder has been silent for too long.
-- Keys: the holder, the terms. Arguments: a new nonce, the node's name, how many milliseconds are too long.
-- Reply: {1, term, commit, clock, the server's time}; {0, term, node, milliseconds since it was seen} if another holds
-- it; {-1} if there is no store.
local function acquire(keys, args)
    local held = read(keys[1])
    if not held then
        return { -1 }
    end
    local silent = wall() - tonumber(held.seen_at)
    if held.nonce ~= '' and math.abs(silent) < tonumber(args[3]) then
        return { 0, held.term, held.node, silent }
    end
    return raise(keys, held, args[1], args[2])
end

-- Raises the term of a holder that does not know what became of its last commit. A commit that is still on its way is
-- refused from then on. Repeating the call with the same new nonce is harmless.
-- Keys: the holder, the terms. Arguments: term, nonce, a new nonce, the node's name.
-- Reply: {1, term, commit, clock, the server's time}; {0, term, node, milliseconds since it was seen, the last commit
-- under the caller's term or nothing} if another holds the store; {-1} if there is no store.
local function settle(keys, args)
    local held = read(keys[1])
    if not held then
        return { -1 }
    end
    if held.nonce == args[3] then
        return { 1, held.term, held.commit, held.clock, wall() }
    end
    if held.term == args[1] and held.nonce == args[2] then
        return raise(keys, held, args[3], args[4])
    end
    local last = redis.call('HGET', keys[2], text(tonumber(args[1]) + 1)) or ''
    return { 0, held.term, held.node, wall() - tonumber(held.seen_at), last }
end

-- Says that the holder is alive.
-- Keys: the holder. Arguments: term, nonce, number of the last commit.
-- Reply: {1, the server's time}, or {0} if the caller does not hold the store.
local function heartbeat(keys, args)
    if not holds(keys[1], args) then
        return { 0 }
    end
    local now = wall()
    redis.call('HSET', keys[1], 'seen_at', text(now))
    return { 1, now }
end

-- Gives the store up, so that the next node need not wait.
-- Keys: the holder. Arguments: term, nonce, number of the last commit. Reply: {1}, or {0} if the caller does not hold it.
local function release(keys, args)
    if not holds(keys[1], args) then
        return { 0 }
    end
    redis.call('HSET', keys[1], 'nonce', '')
    return { 1 }
end

redis.register_function { function_name = NAME .. '_create', callback = create, flags = { 'allow-oom' } }
redis.register_function { function_name = NAME .. '_acquire', callback = acquire, flags = { 'allow-oom' } }
redis.register_function { function_name = NAME .. '_settle', callback = settle, flags = { 'allow-oom' } }
redis.register_function { function_name = NAME .. '_heartbeat', callback = heartbeat, flags = { 'allow-oom' } }
redis.register_function { function_name = NAME .. '_release', callback = release, flags = { 'allow-oom' } }
