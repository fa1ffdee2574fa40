package report

// Words are what a mechanism is, and what no run of a few minutes shows.
type Words struct {
	Where  string   // a trigger waits
	Limits []string // sentences
}

// WordsOf a mechanism. docs/mechanisms.md says more.
func WordsOf(name string) Words {
	switch name {
	case "ladder":
		return Words{"In RabbitMQ, in quorum queues with one TTL each: while it waits nothing of Lapse has to run.", []string{
			"The broker's memory and disk hold about 1 kB for each coupon that waits; ladder.horizon bounds it.",
			"It resolves whole seconds; what comes up to a second early is held by the expirer.",
			"A killed worker loses nothing. A killed broker forwards again when it is back; a majority of the nodes of a cluster has to live.",
			"A node that is started again with millions waiting needs about 10 s a million.",
		}}
	case "zset":
		return Words{"In Redis, in sorted sets; movers in publishers and expirers claim what is due and publish it.", []string{
			"Redis has to be there for punctuality, with an append-only file and without eviction; about 500 bytes of its memory for each coupon that waits.",
			"What a killed mover had claimed comes when its lease has run out (15 s).",
			"A failover of Redis may lose up to a second of writes; the sweep finds those coupons after its grace (60 s).",
			"Redis Cluster and Sentinel are not spoken.",
		}}
	case "wheel":
		return Words{"In the memory of the process that relays the coupon's partition, for the next five minutes; before that nowhere.", []string{
			"It is no authority: a killed process takes its wheel along. Whoever takes its partitions over (5 s) reads the rows again.",
			"At most 100 000 triggers for each process; a larger spike is late by the reading, not lost.",
			"A partition that nobody held for over a minute is left to the sweep.",
			"The rows of each window are read once from the database.",
		}}
	case "sweep":
		return Words{"Nowhere: the row is found by its index, five times a second.", []string{
			"The database does all of the work, in a spike and while nothing is due.",
			"Its precision is a round of 200 ms, and as many coupons as the sweep's own transactions bear.",
			"Nothing is sent, so nothing can be lost but time: it is what remains of every other mechanism when all else is away.",
		}}
	default:
		return Words{}
	}
}
