-- What the functions of the library share. The library is one chunk: a first line that names it, then these files.
--
-- Keys: all keys of a store begin with the same prefix, which has a hash tag. A function is given the key PREFIXholder
-- and makes the others from it:
--   holder   hash: who holds the store (term, nonce, node, seen_at), the last commit, the store's clock, its version
--   terms    hash: term -> the last commit before it
--   t:N      hash: the rows of table N, by key
--   o:N      sorted set: the keys of table N in order, for tables that are read by range
--   i:N      hash: what is in the indexes about a row of table N, by its key
--   x:N      sorted set: index N
-- Atomicity: Redis runs a function from its beginning to its end with nothing in between. There is no rollback, so a
-- function that writes checks everything that can fail before its first write.

-- Values that are handed to one call of a command. Lua can pass about 8,000.
local CHUNK = 1000

local function prefix_of(holder)
    return string.sub(holder, 1, -7)
end

-- The server's time in milliseconds.
local function wall()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- A whole number as text. Lua would write large ones with an exponent.
local function text(number)
    return string.format('%.0f', number)
end

-- Whether the caller holds the store: its term, its nonce and its number of the last commit are the stored ones.
local function holds(holder, args)
    local held = redis.call('HMGET', holder, 'term', 'nonce', 'commit')
    return held[1] == args[1] and held[2] == args[2] and held[3] == args[3]
end
