-- Reads a bounded part of a sorted set and the rows that its members lead to, in one round trip.
--
-- Keys: the sorted set, the hash with the rows.
-- Arguments: the first and the last member as ZRANGE BYLEX takes them, 'REV' or nothing (then the greater one comes
-- first), how many at most, how a member leads to a row: 'key' if it is the row's key, 'letter' if the key is the 16
-- bytes before the last 8.
-- Reply: member, row, member, row, ...; the row is nil if it is missing.
-- Atomicity: all of a reply is of one moment.
local function read_rows(keys, args)
    local members
    if args[3] == 'REV' then
        members = redis.call('ZRANGE', keys[1], args[1], args[2], 'BYLEX', 'REV', 'LIMIT', 0, args[4])
    else
        members = redis.call('ZRANGE', keys[1], args[1], args[2], 'BYLEX', 'LIMIT', 0, args[4])
    end
    local reply = {}
    for from = 1, #members, CHUNK do
        local wanted = {}
        for i = from, math.min(from + CHUNK - 1, #members) do
            local member = members[i]
            wanted[#wanted + 1] = args[5] == 'letter' and string.sub(member, -24, -9) or member
        end
        for i, row in ipairs(redis.call('HMGET', keys[2], unpack(wanted))) do
            reply[#reply + 1] = members[from + i - 1]
            reply[#reply + 1] = row
        end
    end
    return reply
end

redis.register_function { function_name = NAME .. '_read', callback = read_rows, flags = { 'no-writes' } }
