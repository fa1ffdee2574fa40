package coupon

// A heartbeat is a coupon that the fleet grants to itself, so that the walk can be seen to go through. It has a template of its
// own for each precision, with an id that no campaign gets, and a user that nobody is. It is nobody's statistics, and nobody is
// told of it.
const (
	heartbeatTemplates uint64 = 1 << 62 // the first of them; those of campaigns count from 1

	// HeartbeatUser is whom heartbeats are granted to.
	HeartbeatUser = "lapse.heartbeat"
)

// HeartbeatTemplate is the template of a class's heartbeats.
func HeartbeatTemplate(p Precision) uint64 {
	for i, of := range Precisions() {
		if of == p {
			return heartbeatTemplates + uint64(i)
		}
	}
	return heartbeatTemplates
}

// HeartbeatOf gives the class whose heartbeats the template is for; not ok: it is a campaign's.
func HeartbeatOf(template uint64) (p Precision, ok bool) {
	classes := Precisions()
	if template < heartbeatTemplates || template >= heartbeatTemplates+uint64(len(classes)) {
		return "", false
	}
	return classes[template-heartbeatTemplates], true
}
