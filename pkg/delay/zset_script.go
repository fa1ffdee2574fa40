package delay

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
)

// Shards is into how many shards the triggers are divided. It is part of the layout in Redis.
const Shards = 4

// maxClaim bounds a batch: Lua gives no more than some thousand arguments to one command.
const maxClaim = 1000

// shard is three keys of one slot: what waits (by instant), what a mover has claimed (by the end of its lease, on the server's
// clock), and what both are to send.
type shard struct{ waiting, flight, bodies string }

func shardsOf(prefix string) [Shards]shard {
	var ss [Shards]shard
	for i := range ss {
		tag := "{" + prefix + ".delay." + strconv.Itoa(i) + "}"
		ss[i] = shard{waiting: tag + ".waiting", flight: tag + ".flight", bodies: tag + ".bodies"}
	}
	return ss
}

func (s shard) keys() []string { return []string{s.waiting, s.flight, s.bodies} }

// claim takes what is due for a lease: first what others claimed and did not finish in their time (or gave back: their
// lease ends at 0), then what waits. ARGV: how far the database's clock is ahead of the server's, at most how many, the
// lease; in milliseconds. It gives: how many leases had run out, how many wait, how many are claimed, the next instant on
// the server's clock or "", the server's clock; then member and body of each.
//
//nolint:gochecknoglobals // a constant
var claim = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local ahead, limit, lease = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local function text(n) return string.format('%.0f', n) end
local members, ran_out, waits = {}, 0, 0
local left = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', text(now), 'WITHSCORES', 'LIMIT', 0, limit)
for i = 1, #left, 2 do
  members[#members + 1] = left[i]
  if tonumber(left[i + 1]) > 0 then ran_out = ran_out + 1 end
end
if #members < limit then
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(now + ahead), 'LIMIT', 0, limit - #members)
  if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end
  for i = 1, #due do members[#members + 1] = due[i] end
end
local out = {}
if #members > 0 then
  local bodies = redis.call('HMGET', KEYS[3], unpack(members))
  local leases, without = {}, {}
  for i = 1, #members do
    if bodies[i] then
      leases[#leases + 1] = text(now + lease)
      leases[#leases + 1] = members[i]
      out[#out + 1] = members[i]
      out[#out + 1] = bodies[i]
    else
      without[#without + 1] = members[i]
    end
  end
  if #leases > 0 then redis.call('ZADD', KEYS[2], unpack(leases)) end
  if #without > 0 then redis.call('ZREM', KEYS[2], unpack(without)) end
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
local upcoming = ''
if first[2] then upcoming = text(tonumber(first[2]) - ahead) end
return {ran_out, redis.call('ZCARD', KEYS[1]), redis.call('ZCARD', KEYS[2]), upcoming, text(now), out}
`)

// finish forgets what was published. A body stays when its trigger was handed over again meanwhile.
//
//nolint:gochecknoglobals // a constant
var finish = redis.NewScript(`
redis.call('ZREM', KEYS[2], unpack(ARGV))
local over = {}
for i = 1, #ARGV do
  if not redis.call('ZSCORE', KEYS[1], ARGV[i]) then over[#over + 1] = ARGV[i] end
end
if #over > 0 then redis.call('HDEL', KEYS[3], unpack(over)) end
return #over
`)

// giveBack ends the lease of what could not be published: the next claim has it first.
//
//nolint:gochecknoglobals // a constant
var giveBack = redis.NewScript(`
local leases = {}
for i = 1, #ARGV do
  leases[#leases + 1] = '0'
  leases[#leases + 1] = ARGV[i]
end
return redis.call('ZADD', KEYS[2], 'XX', unpack(leases))
`)

// claimed is what a claim gave.
type claimed struct {
	ranOut          int
	waiting, flight int64
	rest            time.Duration // until the next one waits no longer; negative: nothing waits
	now             time.Time     // the server's clock
	members         []string
	messages        []broker.Message
	at              []time.Time
	broken          []string // members that cannot be read
}

var errAnswer = errors.New("redis answered something else than the script gives")

func readClaim(v any, exchange string) (c claimed, err error) {
	parts, ok := v.([]any)
	if !ok || len(parts) != 6 {
		return c, errAnswer
	}
	ranOut, ok1 := parts[0].(int64)
	waiting, ok2 := parts[1].(int64)
	flight, ok3 := parts[2].(int64)
	upcoming, ok4 := parts[3].(string)
	nowText, ok5 := parts[4].(string)
	pairs, ok6 := parts[5].([]any)
	now, err := strconv.ParseInt(nowText, 10, 64)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 || !ok6 || err != nil || len(pairs)%2 != 0 {
		return c, errAnswer
	}
	c = claimed{ranOut: int(ranOut), waiting: waiting, flight: flight, rest: -1, now: time.UnixMilli(now)}
	if next, err := strconv.ParseInt(upcoming, 10, 64); err == nil {
		c.rest = max(0, time.Duration(min(next-now, maxRest))*time.Millisecond)
	}
	for i := 0; i < len(pairs); i += 2 {
		member, ok1 := pairs[i].(string)
		value, ok2 := pairs[i+1].(string)
		if !ok1 || !ok2 {
			return c, errAnswer
		}
		m, at, err := decode(exchange, value)
		if err != nil {
			c.broken = append(c.broken, member)
			continue
		}
		c.members, c.messages, c.at = append(c.members, member), append(c.messages, m), append(c.at, at)
	}
	return c, nil
}

const maxRest = 3_600_000 // milliseconds: longer is not waited in one go

// memberOf names a trigger within its shard: by its kind as well, since a coupon's triggers of one version have one id.
func memberOf(t *coupon.Timed) string { return string(t.Kind) + " " + t.ID }

// encode writes what is to be sent: a line of layout, routing key, instant, id and trace, then the body.
func encode(t *coupon.Timed) string {
	var b strings.Builder
	b.Grow(96 + len(t.Trace) + len(t.Body))
	b.WriteString("1 ")
	b.WriteString(dueKey(t))
	b.WriteByte(' ')
	b.WriteString(strconv.FormatInt(t.At.UnixMilli(), 10))
	b.WriteByte(' ')
	b.WriteString(t.ID)
	b.WriteByte(' ')
	if !strings.ContainsAny(t.Trace, " \n") {
		b.WriteString(t.Trace)
	}
	b.WriteByte('\n')
	b.Write(t.Body)
	return b.String()
}

func decode(exchange, value string) (m broker.Message, at time.Time, err error) {
	head, body, found := strings.Cut(value, "\n")
	fields := strings.Split(head, " ")
	if !found || len(fields) != 5 || fields[0] != "1" {
		return m, at, fmt.Errorf("not an entry: %.40q", value)
	}
	ms, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil {
		return m, at, fmt.Errorf("not an instant: %w", err)
	}
	m = broker.Message{Exchange: exchange, Key: fields[1], ID: fields[3], Body: []byte(body), Mandatory: true}
	if fields[4] != "" {
		m.Headers = map[string]any{broker.HeaderTrace: fields[4]}
	}
	return m, time.UnixMilli(ms), nil
}

// runOver runs a script over members.
func runOver(ctx context.Context, c redis.Scripter, script *redis.Script, s shard, members []string) error {
	args := make([]any, len(members))
	for i, m := range members {
		args[i] = m
	}
	return script.Run(ctx, c, s.keys(), args...).Err() //nolint:wrapcheck // said by the caller
}
