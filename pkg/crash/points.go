package crash

// Point is a commit point of the walk.
type Point struct {
	Kind   Kind
	Name   string
	Where  string // the program that a test stops there; others may have the same code
	Does   string // what is durable, or out of the process, once it has been passed
	Before string // what is done again after a stop before it; empty: nothing had been done
	After  string // what is done again after a stop behind it; empty: nothing
	// Twice names what a listener then hears a second time under the same id, by the side of the stop (before, after).
	Twice map[string]string
}

// String is how the point is armed, without its side.
func (p Point) String() string { return string(p.Kind) + " " + p.Name }

// The programs.
const (
	Publisher = "publisher"
	Expirer   = "expirer"
	Notifier  = "notifier"
	Lapsectl  = "lapsectl"
)

func twice(before, after string) map[string]string {
	m := make(map[string]string)
	if before != "" {
		m["before"] = before
	}
	if after != "" {
		m["after"] = after
	}
	return m
}

// Points lists every commit point of the walk, in its order.
func Points() []Point {
	all := intake()
	all = append(all, relay()...)
	all = append(all, plans()...)
	all = append(all, books()...)
	all = append(all, checkout()...)
	all = append(all, ends()...)
	return append(all, notices()...)
}

func intake() []Point {
	return []Point{
		{
			Kind: Commit, Name: "issue", Where: Publisher, Does: "coupons, grant keys, history, and the outbox rows of triggers and events",
			Before: "the delivery comes again and is granted", After: "the delivery comes again; its grant keys are found",
		},
		{Kind: Ack, Name: "issuance", Where: Publisher, Does: "the grants are off the queue", Before: "the delivery comes again; its grant keys are found"},
	}
}

func relay() []Point {
	const claimed = "the partitions wait for the end of the lease"
	return []Point{
		{Kind: Commit, Name: "claim outbox partitions", Where: Publisher, Does: "partitions are this relay's", After: claimed},
		{
			Kind: Publish, Name: "trigger", Where: Publisher, Does: "triggers are in the ladder", Before: claimed,
			After: "the same triggers are published once more; the row has been settled when the second rings", Twice: twice("", "trigger"),
		},
		{
			Kind: Publish, Name: "event", Where: Publisher, Does: "events are with the broker", Before: claimed,
			After: "the same events are published once more, under their ids", Twice: twice("", "event"),
		},
		{
			Kind: Commit, Name: "delete outbox rows", Where: Publisher, Does: "what was confirmed is gone from the outbox",
			Before: "what was confirmed is published once more", Twice: twice("trigger or event", ""),
		},
		{
			Kind: Commit, Name: "refuse outbox rows", Where: Publisher, Does: "a refusal of the broker is counted, and after twenty the row is parked",
			Before: "the row is tried and refused again, and counted then",
		},
	}
}

func plans() []Point {
	const lease = "the plan waits for the end of the lease"
	return []Point{
		{Kind: Commit, Name: "set horizon", Where: Publisher, Does: "the horizon, for all verbs", Before: "the start sets it", After: "the start sets the same once more"},
		{Kind: Commit, Name: "set reminders", Where: Publisher, Does: "the offsets of reminders, for all verbs", Before: "the start sets them", After: "the start sets the same once more"},
		{Kind: Commit, Name: "claim plan", Where: Publisher, Does: "a plan is this planner's", After: lease},
		{
			Kind: Publish, Name: "promotion", Where: Publisher, Does: "a page of a slice is in the ladder", Before: lease,
			After: "the page is published once more", Twice: twice("", "trigger"),
		},
		{
			Kind: Publish, Name: "reminders", Where: Publisher, Does: "a page of reminders is with the broker", Before: lease,
			After: "the page is published once more, under its ids", Twice: twice("", "event"),
		},
		{
			Kind: Commit, Name: "move plan", Where: Publisher, Does: "the place of the plan is behind the page",
			Before: "the page is published once more", After: lease, Twice: twice("trigger or event", ""),
		},
		{Kind: Write, Name: "plan.release", Where: Publisher, Does: "the plan is free for the next round", Before: lease},
	}
}

func books() []Point {
	return []Point{
		{
			Kind: Commit, Name: "count events", Where: Publisher, Does: "statistics, and which events are in them",
			Before: "the events come again and are counted", After: "the events come again; they are known",
		},
		{Kind: Ack, Name: "ledger", Where: Publisher, Does: "the events are off the queue", Before: "the events come again; they are known"},
		{Kind: Commit, Name: "fold quota", Where: Publisher, Does: "returned quota is in the counters, and its notes are gone", Before: "the next round folds it"},
		{
			Kind: Commit, Name: "seed statistics", Where: Publisher, Does: "a page of history is counted, and the place is behind it",
			Before: "the page is counted", After: "the walk goes on behind the page",
		},
		{
			Kind: Commit, Name: "archive", Where: Expirer, Does: "coupons and their history are in the archive, and nowhere else",
			Before: "the next pass moves them",
		},
		{
			Kind: Publish, Name: "rebuild", Where: Lapsectl, Does: "a page of triggers is in the ladder", Before: "the next call publishes the page",
			After: "the next call publishes the page once more", Twice: twice("", "trigger"),
		},
	}
}

func checkout() []Point {
	const (
		again   = "the client asks again, and it is done"
		known   = "the client asks again and is answered as at first"
		created = "the client asks again with its key and is told what was made"
	)
	var all []Point
	for _, verb := range []string{"lock", "renew", "redeem", "release", "refund", "extend", "void"} {
		repeat := known
		switch verb {
		case "renew":
			repeat = "the client asks again, and the lock is as long from then on"
		case "extend", "void":
			repeat = "the client asks again; nothing is left to do"
		}
		all = append(all, Point{
			Kind: Commit, Name: verb, Where: Publisher, Does: "the step of all of an order's coupons, history, events, triggers", Before: again, After: repeat,
		})
		operation := verb + "Coupons"
		if verb == "extend" || verb == "void" {
			operation = verb + "Coupon"
		}
		all = append(all, Point{Kind: Answer, Name: operation, Where: Publisher, Does: "the answer is sent", Before: repeat})
	}
	return append(all,
		Point{Kind: Answer, Name: "grantCoupons", Where: Publisher, Does: "the answer is sent", Before: "the client asks again; the grant keys are found"},
		Point{Kind: Commit, Name: "create template", Where: Publisher, Does: "a template, noted with the Idempotency-Key", Before: again, After: created},
		Point{Kind: Commit, Name: "revise template", Where: Publisher, Does: "a revision, noted with the Idempotency-Key", Before: again, After: created},
		Point{Kind: Commit, Name: "stop template", Where: Publisher, Does: "the template grants no more", Before: again, After: "the client asks again; nothing is left to do"},
		Point{Kind: Write, Name: "idempotency.insert", Where: Publisher, Does: "the key is taken, for a lease", Before: again, After: "the key is busy until its lease ends; then it is done"},
		Point{Kind: Write, Name: "idempotency.finish", Where: Publisher, Does: "the answer is kept for the key", Before: "the key is busy until its lease ends; then " + known, After: "the client asks again and is given the answer that was kept"},
		Point{Kind: Commit, Name: "begin idempotent", Where: Publisher, Does: "a key whose lease has ended is taken over", Before: again, After: "the key is busy until its new lease ends; then it is done"},
		Point{Kind: Write, Name: "idempotency.delete", Where: Publisher, Does: "a key of which nothing came is free", Before: "the key is busy until its lease ends"},
		Point{Kind: Commit, Name: "redeem_refused", Where: Publisher, Does: "the event that a paid order was refused", Before: "the order event comes again", After: "the order event comes again; the event is published once more, under its id", Twice: twice("", "event")},
		Point{Kind: Forward, Name: "orders", Where: Publisher, Does: "an order event whose coupon is held is set aside in the ladder", Before: "the order event comes again", After: "the order event comes again, and later once more; it is done once"},
		Point{Kind: Ack, Name: "orders", Where: Publisher, Does: "the order event is off the queue", Before: "the order event comes again; it is done already"},
		Point{Kind: Publish, Name: "lazy", Where: Publisher, Does: "what a reader found ended is rung for", Before: "the ladder or the sweep finds it"},
		Point{Kind: Commit, Name: "take popups", Where: Publisher, Does: "the popups are handed out", Before: "they are taken by the next call", After: "they are kept, and pop up no more"},
		Point{Kind: Commit, Name: "notice receipts", Where: Publisher, Does: "what the provider said of notices", Before: "the provider says it again", After: "the provider says it again; it is known"},
	)
}

func ends() []Point {
	return []Point{
		{
			Kind: Commit, Name: "expire", Where: Expirer, Does: "coupons are expired or unlocked, with history and events",
			Before: "the triggers come again", After: "the triggers come again; the rows are settled",
		},
		{Kind: Forward, Name: "due.expire.exact", Where: Expirer, Does: "an early trigger is in the ladder for the rest of its time", Before: "the trigger comes again", After: "the trigger comes again, and the rest rings twice"},
		{Kind: Ack, Name: "due.expire.exact", Where: Expirer, Does: "the triggers are off the queue", Before: "the triggers come again; the rows are settled"},
		{Kind: Ack, Name: "due.expire.relaxed", Where: Expirer, Does: "the triggers of the other precisions are off the queue", Before: "the triggers come again; the rows are settled"},
		{Kind: Ack, Name: "due.unlock", Where: Expirer, Does: "the triggers of locks are off the queue", Before: "the triggers come again; the rows are settled"},
		{Kind: Ack, Name: "unroutable", Where: Expirer, Does: "dead letters without a route are off the queue", Before: "the triggers come again; the rows are settled"},
		{Kind: Commit, Name: "sweep", Where: Expirer, Does: "overdue coupons are expired, with history and events", Before: "the next round finds them"},
	}
}

func notices() []Point {
	return []Point{
		{
			Kind: Commit, Name: "collect notices", Where: Notifier, Does: "an event is an item of a window",
			Before: "the event comes again", After: "the event comes again; its item is there",
		},
		{Kind: Ack, Name: "notice", Where: Notifier, Does: "the event is off the queue", Before: "the event comes again; its item is there"},
		{Kind: Commit, Name: "close notices", Where: Notifier, Does: "a window's members are fixed, and there is a notice for each channel", Before: "the window is closed by the next round"},
		{Kind: Commit, Name: "claim notices", Where: Notifier, Does: "notices are this process's, for a lease", Before: "they are claimed by the next round", After: "they are claimed when the lease ends"},
		{Kind: Commit, Name: "prepare notices", Where: Notifier, Does: "the send is about to begin", Before: "the notices are claimed when the lease ends", After: "as if it had been sent: what may not go twice is unknown, the rest is sent"},
		{
			Kind: Send, Name: "sms", Where: Notifier, Does: "the provider has it",
			Before: "nothing: it may have been sent, and is unknown", After: "nothing: it may have been sent, and is unknown",
		},
		{Kind: Send, Name: "push", Where: Notifier, Does: "the provider has it", Before: "it is sent when the lease ends", After: "it is sent once more, under its id", Twice: twice("", "push")},
		{Kind: Send, Name: "email", Where: Notifier, Does: "the mail server has it", Before: "it is sent when the lease ends", After: "it is sent once more, under its Message-ID", Twice: twice("", "email")},
		{Kind: Commit, Name: "deliver inbox", Where: Notifier, Does: "the notice is in the user's inbox, and recorded as sent", Before: "it is delivered when the lease ends"},
		{Kind: Commit, Name: "settle notices", Where: Notifier, Does: "what became of the sends is recorded", Before: "what may go twice is sent once more; the rest is unknown", Twice: twice("push or email", "")},
		{Kind: Commit, Name: "apply user events", Where: Notifier, Does: "what users said of themselves", Before: "the event comes again", After: "the event comes again; it is no news"},
		{Kind: Ack, Name: "users", Where: Notifier, Does: "the event is off the queue", Before: "the event comes again; it is no news"},
	}
}

// Excused are the other commits, and why a stop at them is of no account to the walk.
func Excused() map[string]string {
	const (
		beat    = "is said again every few seconds; what was said last is looked at with its age"
		lease   = "gives up what would be free at the end of its lease"
		prune   = "removes what nobody asks for any more; the next round finds it"
		person  = "a person's command, in one transaction: whoever does not see its answer looks, and gives it again"
		private = "the same again changes nothing, and the client asks again"
		place   = "says where the archive's walk stands; without it the walk is longer"
		night   = "claims a night for a reconciliation, which only reads; the next night has another"
		erasure = "is a part of an erasure, which is kept as asked for until all of it is done"
		start   = "is undone whatever happens: the self-test of the start"
		held    = "keeps, or lets go of, grants whose issuance is paused: whoever comes again finds them by their keys"
		steps   = "is a step of a person's command that keeps how far it came: the same command goes on, and does nothing twice"
	)
	return map[string]string{
		"commit self-test": start, "commit self-test skip": start,
		"write sweep.mark_put": beat, "write status.put": beat, "write status.drop": beat, "write sweep.pods_prune": prune,
		"write heartbeat.template": beat, "write heartbeat.rows": beat, "write heartbeat.none": beat, "write beat.done": beat, "commit heartbeat": beat,
		"write outbox.lease_free": lease, "write outbox.relay_leave": lease, "write idempotency.yield": lease,
		"write idempotency.prune": prune, "commit prune tombstones": prune, "commit prune inbox": prune, "commit prune notice counts": prune,
		"commit prune notices": prune, "commit prune profiles": prune,
		"write setting.put": place, "write setting.drop": place, "write reconcile.night": night, "write reconcile.claim": night,
		"commit accept clock": person, "commit parked rows": person, "commit resend notice": person, "commit repair user count": person,
		"commit repair statistics": person, "write repair.stock": person,
		"commit hold grants": held, "write issue.held_drop": held,
		"commit bulk": steps, "commit move operation": steps, "commit reinstate": person,
		"commit import": steps, "commit import walk": steps, "write import.add": person, "write import.mode": person,
		"commit opt-out": private, "write read.inbox_mark": private, "write read.inbox_mark_to": private,
		"commit erase user": erasure, "commit erase windows": erasure, "write erase.inbox": erasure, "write erase.counts": erasure,
		"commit reseal addresses": "seals again what an old key sealed; the next round finds it",
	}
}
