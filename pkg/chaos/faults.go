package chaos

import (
	"context"
	"slices"
	"time"
)

// lane: faults of one lane strike one after the other; those of different ones side by side.
type lane string

const (
	laneServers lane = "servers"
	laneWorkers lane = "workers"
	lanePauses  lane = "pauses"
	laneNetwork lane = "network"
	laneTraffic lane = "traffic"
)

// Fault is one kind of fault.
type Fault struct {
	Name string
	What string // it does, for people

	group       string // strikes only if it is named, by itself or as one of this group: it needs what not every run has
	lane        lane
	targets     []string // "" if there is nothing to choose
	least, most time.Duration
	takes       time.Duration // to be over, after it has been undone
	// inject begins it for about s.For, which it may use to find its moment, and gives what ends it. A note says what became of it.
	inject func(ctx context.Context, site *site, s Strike) (undo func(context.Context) error, note string, err error)
}

// None is the name of no fault at all.
const None = "none"

// workers are the names of the fleet's processes.
func workers() []string {
	return []string{"publisher-1", "publisher-2", "expirer-1", "expirer-2", "expirer-3", "notifier-1", "notifier-2"}
}

func roleOf(worker string) string { return worker[:len(worker)-len("-1")] }

// links are the connections between processes that a proxy stands in.
func links() []string {
	var out []string
	for _, w := range workers() {
		out = append(out, w+"/broker", w+"/database")
	}
	return append(out, "publisher-1/api", "publisher-2/api")
}

// consumers hold deliveries of the broker's.
func consumers() []string { return workers() }

// Faults lists them all.
func Faults() []Fault {
	const s = time.Second
	return []Fault{
		{Name: "kill", What: "SIGKILL of a worker, which is started again", lane: laneWorkers, targets: workers(), least: s / 2, most: 3 * s, takes: s, inject: kill},
		{Name: "term", What: "SIGTERM of a worker, which is started again", lane: laneWorkers, targets: workers(), least: s / 2, most: 2 * s, takes: s, inject: term},
		{
			Name: "log-full", What: "a worker is started with a full disk under its log", lane: laneWorkers, targets: workers(), least: 4 * s, most: 8 * s, takes: 2 * s,
			inject: logFull,
		},
		{Name: "pause", What: "SIGSTOP of a worker for longer than every timeout", lane: lanePauses, targets: workers(), least: pauseFor, most: pauseFor + 4*s, inject: pause},
		{
			Name: "pause-tx", What: "the same in the middle of a transaction that holds rows", lane: lanePauses, targets: workers(), least: pauseFor, most: pauseFor + 4*s,
			inject: pauseInTransaction,
		},
		{
			Name: "consumer-timeout", What: "a worker holds deliveries for longer than the broker bears", lane: lanePauses, targets: consumers(), least: 9 * s, most: 12 * s,
			inject: consumerTimeout,
		},
		{Name: "broker-stop", What: "RabbitMQ stops in good order, and starts", lane: laneServers, least: 3 * s, most: 8 * s, takes: 4 * s, inject: brokerStop},
		{Name: "broker-kill", What: "SIGKILL of RabbitMQ, which is started again", lane: laneServers, least: 2 * s, most: 8 * s, takes: 4 * s, inject: brokerKill},
		{Name: "database-stop", What: "the database stops in good order, and starts", lane: laneServers, least: 2 * s, most: 6 * s, takes: 2 * s, inject: databaseStop},
		{Name: "database-kill", What: "SIGKILL of the database, which is started again", lane: laneServers, least: 2 * s, most: 6 * s, takes: 2 * s, inject: databaseKill},
		{Name: "memory-alarm", What: "RabbitMQ's alarm of memory blocks who publishes", lane: laneServers, least: 3 * s, most: 8 * s, inject: memoryAlarm},
		{Name: "disk-alarm", What: "RabbitMQ's alarm of disk space blocks who publishes", lane: laneServers, least: 3 * s, most: 8 * s, inject: diskAlarm},
		{Name: "broker-limit", What: "RabbitMQ takes no further connection, and a worker loses its own", lane: laneServers, targets: workers(), least: 3 * s, most: 6 * s, inject: brokerLimit},
		{Name: "database-limit", What: "the database takes no further connection, and a worker loses its own", lane: laneServers, targets: workers(), least: 3 * s, most: 6 * s, inject: databaseLimit},
		{
			Name: "consumer-cancel", What: "a due queue is deleted under its consumers, with what it holds", lane: laneServers, least: s, most: 2 * s, takes: 4 * s,
			inject: consumerCancel,
		},
		{Name: "node-kill", What: "SIGKILL of one of RabbitMQ's three nodes, which is started again", group: GroupCluster, lane: laneServers, targets: nodes(), least: 2 * s, most: 8 * s, takes: 6 * s, inject: nodeKill},
		{Name: "node-part", What: "a node is cut off from the two others, and pauses as a minority", group: GroupCluster, lane: laneServers, targets: nodes(), least: 6 * s, most: 15 * s, takes: 6 * s, inject: nodePart},
		{Name: "node-freeze", What: "SIGSTOP of a node", group: GroupCluster, lane: laneServers, targets: nodes(), least: 5 * s, most: 20 * s, takes: 2 * s, inject: nodeFreeze},
		{Name: "leader-change", What: "a node is drained: its leaders and clients go to the others", group: GroupCluster, lane: laneServers, targets: nodes(), least: 3 * s, most: 8 * s, takes: 4 * s, inject: leaderChange},
		{Name: "clock", What: "a worker is started with a clock that is an hour ahead, or behind", group: GroupClock, lane: laneWorkers, targets: workers(), least: 6 * s, most: 15 * s, takes: 2 * s, inject: clockShift},
		{Name: "cut", What: "every connection of a link is reset, again and again", lane: laneNetwork, targets: links(), least: s, most: 4 * s, inject: cutLink},
		{Name: "half-open", What: "a link stays up and lets no byte pass", lane: laneNetwork, targets: links(), least: 6 * s, most: pauseFor, inject: halfOpen},
		{Name: "refuse", What: "a link is cut and takes no connection", lane: laneNetwork, targets: links(), least: 3 * s, most: 8 * s, inject: refuseLink},
		{Name: "delay", What: "every byte of a link comes 50 to 400 ms late", lane: laneNetwork, targets: links(), least: 4 * s, most: 10 * s, inject: delayLink},
		{Name: "bandwidth", What: "a link passes 8 to 64 KiB a second", lane: laneNetwork, targets: links(), least: 4 * s, most: 10 * s, inject: narrowLink},
		{Name: "deadlock", What: "somebody locks the rows that are about to end, the other way round, and holds them", lane: laneTraffic, least: 3 * s, most: 8 * s, inject: deadlock},
		{Name: "duplicates", What: "triggers come three times, in any order, early and late", lane: laneTraffic, least: s, most: s, inject: duplicates},
		{Name: "replay", What: "triggers of the past come again", lane: laneTraffic, least: s, most: s, inject: replayOld},
		{Name: "poison", What: "what nobody can read comes into every queue", lane: laneTraffic, least: s, most: s, inject: poison},
	}
}

// pauseFor is longer than every timeout of a worker as this run configures it: heartbeats (twice 5 s), transactions (10 s), the
// session of a silent connection (15 s), leases (5 and 14 s).
const pauseFor = 18 * time.Second

// Names of all faults.
func Names() []string {
	var names []string
	for _, f := range Faults() {
		names = append(names, f.Name)
	}
	return names
}

// Groups that strike only if they are named.
const (
	GroupCluster = "cluster" // needs a broker of three nodes
	GroupClock   = "clock"   // needs workers whose clock can be another one: rig.BuildShifted
)

// Groups of faults, which can be named instead of each of them. All are those that need nothing.
func Groups() []string {
	return []string{"all", string(laneWorkers), string(lanePauses), string(laneServers), string(laneNetwork), string(laneTraffic), GroupCluster, GroupClock}
}

// choose gives those that are named, by themselves or by their group; no name: all.
func choose(names []string) []Fault {
	return slices.DeleteFunc(Faults(), func(f Fault) bool {
		if f.group != "" {
			return !slices.Contains(names, f.Name) && !slices.Contains(names, f.group)
		}
		return len(names) > 0 && !slices.Contains(names, "all") && !slices.Contains(names, f.Name) && !slices.Contains(names, string(f.lane))
	})
}
