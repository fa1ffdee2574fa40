package coupon

import "time"

// The lanes of the outbox. Triggers are drained first: they are what keeps coupons on time.
const (
	LaneTrigger = 0
	LaneEvent   = 1
)

// Outgoing is a row of the outbox: what the broker still has to be told.
type Outgoing struct {
	ID        uint64
	Lane      int
	Part      int
	CouponID  uint64 // 0: of no coupon
	MsgID     string
	Key       string // routing key of an event, kind of a trigger
	Class     byte   // of a trigger, see Precision.Class
	DeliverAt time.Time
	Body      []byte
	Trace     string
	Refused   int // how often the broker has refused it
}

// OutboxCursor is where a walk over a partition is. A walk begins with a cursor of Part alone.
type OutboxCursor struct {
	Part  int
	After uint64 // rows with a higher id are still to be read
	Upto  uint64 // and this is the last of them: the last row that was there when the walk began; 0: not known yet
}

// OutboxRefusal says that the broker refused a row, and why.
type OutboxRefusal struct {
	ID     uint64
	Reason string
}

// OutboxClaim is what a relay owns after it asked for its share.
type OutboxClaim struct {
	Parts   []int // owned until the lease ends, ascending
	Surplus []int // those of Parts to be given up, because others have less than their share
	Live    int   // relays alive, this one included
}

// OutboxLane is how much waits in a lane.
type OutboxLane struct {
	Rows   int           // at most the limit that was asked for
	Oldest time.Duration // age of the oldest row that is visible; 0 when there is none
}
