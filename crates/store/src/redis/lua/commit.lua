-- Commits what a group of verbs changed. Two functions with the same body: NAME_grow is denied by Redis when it is out
-- of memory, NAME_free is not.
--
-- Keys: the holder.
-- Arguments: term, nonce, number of the last commit, number of this commit, the store's clock; then sections. A section
-- is an operation, the number of a table, whether its keys are kept in order (1 or 0), the number of items, the items:
--   add   key, row         a row that must not exist yet
--   set   key, row         a row that must exist
--   put   key, row         a row that may exist
--   rank  score, key, row  a row that may exist, whose key is ordered by the score
--   cut   key              removes a row that must exist
--   del   key              removes a row that may exist
--   range first, last      removes the rows between these keys, both included
--   index key, entries     what the indexes shall have about a row: for each entry the number of the index in one byte,
--                          the length of the entry in two bytes, the entry
-- Reply: {1, the server's time} if everything was written; {0} if the caller does not hold the store, {-1, why} if the
-- arguments or the stored rows are not what they must be. In the last two cases nothing was written.
-- Atomicity: everything that can fail is checked before the first write, so all sections are written or none.

local WIDTH = { add = 2, set = 2, put = 2, rank = 3, cut = 1, del = 1, range = 2, index = 2 }
local MUST_EXIST = { set = 1, cut = 1, add = 0 }

-- Calls `use(index, entry)` for each entry. Returns whether the entries are well formed.
local function each_entry(entries, use)
    local at = 1
    while at <= #entries do
        local index, high, low = string.byte(entries, at, at + 2)
        if not low then
            return false
        end
        local last = at + 2 + high * 256 + low
        if last > #entries then
            return false
        end
        use(index, string.sub(entries, at + 3, last))
        at = last + 1
    end
    return true
end

-- Reads the sections. Returns them, or nil and what is wrong.
local function checked(prefix, args)
    local sections, types, at = {}, {}, 6
    while at <= #args do
        local op, area, ordered, count = args[at], args[at + 1], args[at + 2], tonumber(args[at + 3])
        local width = WIDTH[op]
        if not width or not count then
            return nil, 'the arguments of a commit cannot be read'
        end
        local first, last = at + 4, at + 3 + width * count
        if last > #args then
            return nil, 'the arguments of a commit are too few'
        end
        local rows = prefix .. 't:' .. area
        types[rows] = 'hash'
        if ordered == '1' then
            types[prefix .. 'o:' .. area] = 'zset'
        end
        local must = MUST_EXIST[op]
        if must then
            for i = first, last, width do
                if redis.call('HEXISTS', rows, args[i]) ~= must then
                    local what = must == 1 and 'is missing' or 'exists already'
                    return nil, 'a row of table ' .. area .. ' that the commit changes ' .. what
                end
            end
        end
        if op == 'index' then
            types[prefix .. 'i:' .. area] = 'hash'
            for i = first, last, width do
                local whole = each_entry(args[i + 1], function(index)
                    types[prefix .. 'x:' .. index] = 'zset'
                end)
                local old = redis.call('HGET', prefix .. 'i:' .. area, args[i]) or ''
                whole = whole and each_entry(old, function(index)
                    types[prefix .. 'x:' .. index] = 'zset'
                end)
                if not whole then
                    return nil, 'an entry of an index cannot be read'
                end
            end
        end
        sections[#sections + 1] =
            { op = op, rows = rows, area = area, ordered = ordered == '1', first = first, last = last }
        at = last + 1
    end
    for key, expected in pairs(types) do
        local found = redis.call('TYPE', key).ok
        if found ~= 'none' and found ~= expected then
            return nil, 'the key ' .. key .. ' is a ' .. found .. ', and a ' .. expected .. ' belongs there'
        end
    end
    return sections
end

-- Adds keys to the order of a table.
local function order(zset, args, first, last, width)
    local values = {}
    for i = first, last, width do
        values[#values + 1] = '0'
        values[#values + 1] = args[i]
        if #values >= CHUNK then
            redis.call('ZADD', zset, unpack(values))
            values = {}
        end
    end
    if #values > 0 then
        redis.call('ZADD', zset, unpack(values))
    end
end

-- Runs a command on all values of a list, a chunk at a time.
local function chunked(command, key, args, first, last)
    for i = first, last, CHUNK do
        redis.call(command, key, unpack(args, i, math.min(i + CHUNK - 1, last)))
    end
end

local write = {}

function write.put(_, section, args)
    chunked('HSET', section.rows, args, section.first, section.last)
end

write.set = write.put
write.add = write.put

function write.rank(prefix, section, args)
    for i = section.first, section.last, 3 do
        redis.call('HSET', section.rows, args[i + 1], args[i + 2])
        redis.call('ZADD', prefix .. 'o:' .. section.area, args[i], args[i + 1])
    end
end

function write.del(prefix, section, args)
    chunked('HDEL', section.rows, args, section.first, section.last)
    if section.ordered then
        chunked('ZREM', prefix .. 'o:' .. section.area, args, section.first, section.last)
    end
end

write.cut = write.del

function write.range(prefix, section, args)
    local zset = prefix .. 'o:' .. section.area
    for i = section.first, section.last, 2 do
        local keys
        repeat
            keys = redis.call('ZRANGE', zset, '[' .. args[i], '[' .. args[i + 1], 'BYLEX', 'LIMIT', 0, CHUNK)
            if #keys > 0 then
                redis.call('HDEL', section.rows, unpack(keys))
                redis.call('ZREM', zset, unpack(keys))
            end
        until #keys < CHUNK
    end
end

function write.index(prefix, section, args)
    local indexed = prefix .. 'i:' .. section.area
    for i = section.first, section.last, 2 do
        local key, entries = args[i], args[i + 1]
        local old = redis.call('HGET', indexed, key) or ''
        if old ~= entries then
            each_entry(old, function(index, entry)
                redis.call('ZREM', prefix .. 'x:' .. index, entry)
            end)
            each_entry(entries, function(index, entry)
                redis.call('ZADD', prefix .. 'x:' .. index, '0', entry)
            end)
            if entries == '' then
                redis.call('HDEL', indexed, key)
            else
                redis.call('HSET', indexed, key, entries)
            end
        end
    end
end

local function commit(keys, args)
    local holder = keys[1]
    local prefix = prefix_of(holder)
    if not holds(holder, args) then
        return { 0 }
    end
    local sections, why = checked(prefix, args)
    if not sections then
        return { -1, why }
    end
    local now = wall()
    for _, section in ipairs(sections) do
        write[section.op](prefix, section, args)
        if section.ordered and (section.op == 'add' or section.op == 'put') then
            order(prefix .. 'o:' .. section.area, args, section.first, section.last, 2)
        end
    end
    local clock = tonumber(redis.call('HGET', holder, 'clock') or '0')
    if tonumber(args[5]) > clock then
        redis.call('HSET', holder, 'clock', args[5])
    end
    redis.call('HSET', holder, 'commit', args[4], 'seen_at', text(now))
    return { 1, now }
end

redis.register_function { function_name = NAME .. '_grow', callback = commit }
redis.register_function { function_name = NAME .. '_free', callback = commit, flags = { 'allow-oom' } }
