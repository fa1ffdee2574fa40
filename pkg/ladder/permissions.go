package ladder

import (
	"fmt"
	"regexp"
	"strings"
)

// Permissions are what a user may do in the vhost, as RabbitMQ's set_permissions takes them: one regular expression each.
type Permissions struct{ Configure, Write, Read string }

// PermissionsOf gives those of a role (publisher, expirer, notifier, operator, reader). With declare the workers make the
// topology themselves, and everything that begins with the prefix is theirs; without they may publish and consume where they have
// to, and lapsectl topology apply makes it.
func (l *Ladder) PermissionsOf(role string, declare bool) (Permissions, error) {
	const none = "^$"
	all := "^" + regexp.QuoteMeta(l.prefix+".")
	names := func(ns ...string) string {
		for i := range ns {
			ns[i] = regexp.QuoteMeta(ns[i])
		}
		return "^(" + strings.Join(ns, "|") + ")$"
	}
	switch role {
	case "operator":
		return Permissions{all, all, all}, nil
	case "reader":
		return Permissions{none, none, none}, nil
	case "publisher", "expirer", "notifier":
		if declare {
			return Permissions{all, all, all}, nil
		}
	default:
		return Permissions{}, fmt.Errorf("role: must be publisher, expirer, notifier, operator or reader, got %q", role)
	}
	out := names(l.Enter(), l.Due(), l.Events(), l.Bundles(), l.ParkExchange())
	switch role {
	case "publisher": // the console looks through what was set aside, and brings it back
		return Permissions{
			none, names(l.Enter(), l.Due(), l.Events(), l.Bundles(), l.ParkExchange(), l.Issuance(), l.Orders(), l.Users(), l.Replay()),
			names(l.Issuance(), l.Orders(), l.Ledger(), l.Parked(), l.Unroutable()),
		}, nil
	case "expirer":
		return Permissions{none, out, names(append(l.DueQueues(), l.Unroutable())...)}, nil
	default:
		return Permissions{none, names(l.Enter(), l.ParkExchange(), l.Replay()), names(l.Notice(), l.Users())}, nil
	}
}
