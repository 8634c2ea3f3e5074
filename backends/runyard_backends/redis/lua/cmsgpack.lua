--[[
Define `cmsgpack.unpack` on a fakeredis server, which lacks this function. A real server has it built in.

A script may not define a global name. This script therefore sets the metatable of the globals, in which Lua looks up
undefined names.

KEYS[1]  not used
ARGV     not used
Returns  nothing
]]
local decode

-- Return the big-endian integer of `size` bytes at position `at`, and the position after it. `sign`: subtracted from a first byte
-- of 128 or more (256 for signed integers, 0 for unsigned ones).
local function integer(text, at, size, sign)
  local value = 0
  for i = at, at + size - 1 do
    local byte = assert(string.byte(text, i), 'Missing bytes in input.')
    value = value * 256 + (i == at and byte >= 128 and byte - sign or byte)
  end
  return value, at + size
end

local function unsigned(text, at, size)
  return integer(text, at, size, 0)
end

local function signed(text, at, size)
  return integer(text, at, size, 256)
end

-- Return the IEEE 754 number of `size` bytes at position `at`, and the position after it. `exponent`: bits of its exponent.
local function float(text, at, size, exponent)
  local bits, after = unsigned(text, at, 1), at + size
  local negative, fraction_bits = bits >= 128, 8 * size - 1 - exponent
  local head = (bits % 128) * 256 + unsigned(text, at + 1, 1)
  local unit = 2 ^ (15 - exponent)
  local power, fraction = math.floor(head / unit), head % unit
  for i = at + 2, after - 1 do
    fraction = fraction * 256 + unsigned(text, i, 1)
  end
  local value
  if power == 2 ^ exponent - 1 then
    value = fraction == 0 and math.huge or 0 / 0
  elseif power == 0 then
    value = math.ldexp(fraction, 2 - 2 ^ (exponent - 1) - fraction_bits)
  else
    value = math.ldexp(2 ^ fraction_bits + fraction, power - 2 ^ (exponent - 1) + 1 - fraction_bits)
  end
  return negative and -value or value, after
end

local function bytes(text, at, size)
  assert(at + size - 1 <= #text, 'Missing bytes in input.')
  return string.sub(text, at, at + size - 1), at + size
end

local function array(text, at, count)
  local out = {}
  for i = 1, count do
    out[i], at = decode(text, at)
  end
  return out, at
end

local function map(text, at, count)
  local out, key = {}, nil
  for _ = 1, count do
    key, at = decode(text, at)
    out[key], at = decode(text, at)
  end
  return out, at
end

-- For values with an explicit length after the tag, by tag: {function that reads the value, bytes of the length}.
local SIZED = {
  [0xc4] = {bytes, 1}, [0xc5] = {bytes, 2}, [0xc6] = {bytes, 4}, [0xd9] = {bytes, 1}, [0xda] = {bytes, 2}, [0xdb] = {bytes, 4},
  [0xdc] = {array, 2}, [0xdd] = {array, 4}, [0xde] = {map, 2}, [0xdf] = {map, 4},
}
-- For numbers, by tag: {function that reads the number, bytes of the number, and for `float` the bits of the exponent}.
local NUMBERS = {
  [0xcc] = {unsigned, 1}, [0xcd] = {unsigned, 2}, [0xce] = {unsigned, 4}, [0xcf] = {unsigned, 8},
  [0xd0] = {signed, 1}, [0xd1] = {signed, 2}, [0xd2] = {signed, 4}, [0xd3] = {signed, 8},
  [0xca] = {float, 4, 8}, [0xcb] = {float, 8, 11},
}
local CONSTANTS = {[0xc2] = false, [0xc3] = true}

-- Return the value at position `at`, and the position after it.
function decode(text, at)
  local tag = unsigned(text, at, 1)
  at = at + 1
  if tag < 0x80 then
    return tag, at
  elseif tag < 0x90 then
    return map(text, at, tag - 0x80)
  elseif tag < 0xa0 then
    return array(text, at, tag - 0x90)
  elseif tag < 0xc0 then
    return bytes(text, at, tag - 0xa0)
  elseif tag >= 0xe0 then
    return tag - 0x100, at
  elseif tag == 0xc0 or CONSTANTS[tag] ~= nil then
    return CONSTANTS[tag], at
  elseif NUMBERS[tag] then
    return NUMBERS[tag][1](text, at, NUMBERS[tag][2], NUMBERS[tag][3])
  end
  local found = assert(SIZED[tag], 'Bad data format in input.')
  local size, after = unsigned(text, at, found[2])
  return found[1](text, after, size)
end

local function unpack(text)
  local value, after = decode(text, 1)
  assert(after == #text + 1, 'One value was expected.')
  return value
end

setmetatable(_G, {__index = {cmsgpack = {unpack = unpack}}})
