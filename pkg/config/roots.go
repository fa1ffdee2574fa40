package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lapsehq/lapse/pkg/api"
	"github.com/lapsehq/lapse/pkg/archive"
	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/console"
	"github.com/lapsehq/lapse/pkg/delay"
	"github.com/lapsehq/lapse/pkg/expiry"
	"github.com/lapsehq/lapse/pkg/heartbeat"
	"github.com/lapsehq/lapse/pkg/issuance"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/ledger"
	"github.com/lapsehq/lapse/pkg/order"
	"github.com/lapsehq/lapse/pkg/outbox"
	"github.com/lapsehq/lapse/pkg/planner"
	"github.com/lapsehq/lapse/pkg/profile"
	"github.com/lapsehq/lapse/pkg/reconcile"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/telemetry"
	"github.com/lapsehq/lapse/pkg/wakeup"
	"github.com/lapsehq/lapse/pkg/yield"
)

// Common is what every worker of an installation is told. Installation, prefix, ladder and delay must be the same for all of
// them.
type Common struct {
	// Installation names this installation in the source of its events (/lapse/<installation>). Required; never change it:
	// consumers tell events apart by it.
	Installation string `koanf:"installation"`
	// Prefix begins the name of everything in the broker, so that installations can share one. Default lapse.
	Prefix    string                `koanf:"prefix"`
	Log       telemetry.LogConfig   `koanf:"log"`
	Admin     telemetry.AdminConfig `koanf:"admin"`
	Telemetry telemetry.Config      `koanf:"telemetry"`
	Shutdown  ShutdownConfig        `koanf:"shutdown"`
	Broker    broker.Config         `koanf:"broker"`
	Database  store.Config          `koanf:"database"`
	Ladder    ladder.Config         `koanf:"ladder"`
	Delay     DelayConfig           `koanf:"delay"`
}

// ShutdownConfig says how a worker goes.
type ShutdownConfig struct {
	// Propagate is how long /readyz says no before anything stops, so that load balancers have seen it. Default 0s.
	Propagate time.Duration `koanf:"propagate"`
}

// Validate reports every fault.
func (c ShutdownConfig) Validate() error {
	if c.Propagate < 0 || c.Propagate > time.Minute {
		return fmt.Errorf("propagate: must be between 0s and 1m, got %s", c.Propagate)
	}

	return nil
}

// Mechanisms of delay.
const (
	MechanismLadder = "ladder" // triggers wait in RabbitMQ
	MechanismZSet   = "zset"   // triggers wait in a Redis server
	MechanismWheel  = "wheel"  // triggers of the next minutes wait in the memory of the processes that relay
	MechanismSweep  = "sweep"  // nothing waits anywhere: the sweep of the due_at index does all of it
)

// DelayConfig says what makes a coupon's end be noticed in time.
type DelayConfig struct {
	// Mechanism is ladder, zset, wheel or sweep; docs/mechanisms.md tells them apart. Default ladder.
	Mechanism string            `koanf:"mechanism"`
	Redis     delay.ZSetConfig  `koanf:"redis"` // of zset
	Wheel     delay.WheelConfig `koanf:"wheel"`
}

// Validate reports every fault.
func (c DelayConfig) Validate() error {
	var errs []error
	known := []string{MechanismLadder, MechanismZSet, MechanismWheel, MechanismSweep}
	if !slices.Contains(known, c.Mechanism) {
		errs = append(errs, fmt.Errorf("mechanism: must be one of %s, got %q", strings.Join(known, ", "), c.Mechanism))
	}
	errs = append(errs, inSection("redis", c.Redis.Validate()), inSection("wheel", c.Wheel.Validate()))
	if c.Mechanism == MechanismZSet && c.Redis.URL.Empty() {
		errs = append(errs, inSection("redis", c.Redis.ValidateURL()))
	}

	return errors.Join(errs...)
}

// inSection puts a section's name before the field that each error of it begins with.
func inSection(section string, err error) error {
	var errs []error
	for _, e := range flatten(err) {
		errs = append(errs, fmt.Errorf("%s.%w", section, e))
	}

	return errors.Join(errs...)
}

// DefaultCommon returns the defaults of every worker; installation, broker.url and the database's password have none.
func DefaultCommon() Common {
	return Common{
		Prefix: "lapse",
		Log:    telemetry.DefaultLogConfig(), Admin: telemetry.DefaultAdminConfig(), Telemetry: telemetry.DefaultConfig(),
		Broker: broker.DefaultConfig(), Database: store.DefaultConfig(), Ladder: ladder.DefaultConfig(),
		Delay: DelayConfig{Mechanism: MechanismLadder, Redis: delay.DefaultZSetConfig(), Wheel: delay.DefaultWheelConfig()},
	}
}

// AdminAddress is where the worker's admin server listens.
func (c Common) AdminAddress() string { return c.Admin.Address }

// Hidden are the keys that follow from others.
func (Common) Hidden() map[string]string { return map[string]string{"ladder.prefix": "prefix"} }

// Derive fills in what follows from other keys.
func (c *Common) Derive() { c.Ladder.Prefix = c.Prefix }

var installationPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// Validate reports the faults that no section can see by itself.
func (c Common) Validate() error {
	if !installationPattern.MatchString(c.Installation) {
		return fmt.Errorf("installation: must be set, to 1 to 63 of a-z, 0-9, dot, dash and underscore, got %q", c.Installation)
	}

	return nil
}

// Publisher is the configuration of cmd/publisher.
type Publisher struct {
	Common  `koanf:",squash"`
	Outbox  outbox.Config  `koanf:"outbox"`
	Planner planner.Config `koanf:"planner"`
	// Reminders says when users are told of ends that come near, for the whole installation: the publisher that starts last
	// decides.
	Reminders planner.RemindConfig `koanf:"reminders"`
	Issuance  issuance.Config      `koanf:"issuance"`
	Order     order.Config         `koanf:"order"`
	Ledger    ledger.Config        `koanf:"ledger"`
	Yield     yield.Config         `koanf:"yield"` // of the ledger, to events that wait to be told
	Heartbeat heartbeat.Config     `koanf:"heartbeat"`
	API       api.Config           `koanf:"api"`
	Console   console.Config       `koanf:"console"`
}

// besideAPI is how many connections relay, consumers, planner and ledger of a publisher need beside the API's.
const besideAPI = 8

// DefaultPublisher returns the defaults.
func DefaultPublisher() Publisher {
	c := Publisher{
		Common: DefaultCommon(), Outbox: outbox.DefaultConfig(), Planner: planner.DefaultConfig(), Reminders: planner.DefaultRemindConfig(),
		Issuance: issuance.DefaultConfig(), Order: order.DefaultConfig(), Ledger: ledger.DefaultConfig(), Yield: yield.DefaultConfig(),
		Heartbeat: heartbeat.DefaultConfig(), API: api.DefaultConfig(), Console: console.DefaultConfig(),
	}
	c.Admin.Address = ":9101"
	c.Database.MaxOpen = 40 // most of them are the API's: see api.limits

	return c
}

// Validate reports the faults that no section can see by itself.
func (c Publisher) Validate() error {
	errs := []error{c.Common.Validate()}
	if most := c.Database.MaxOpen - besideAPI; c.API.Address != "" && c.API.Connections() > most {
		errs = append(errs, fmt.Errorf("api.limits: concurrent of all scopes must be at most %d together (database.max_open − %d), got %d",
			most, besideAPI, c.API.Connections()))
	}
	if c.API.Sandbox {
		errs = append(errs, c.sandbox())
	}
	if c.Ladder.Horizon > 0 || len(c.Reminders.Offsets) > 0 {
		if err := c.Planner.ValidateLimit(c.Database.TxLimit); err != nil {
			errs = append(errs, fmt.Errorf("planner.%w", err))
		}
	}

	return errors.Join(errs...)
}

// sandboxMark is what prefix and database of a sandbox have in their names.
const sandboxMark = "sandbox"

// sandbox refuses sandbox mode where it would touch what is no sandbox's: a line too many in a file must not let an integrator
// end real coupons.
func (c Publisher) sandbox() error {
	for _, n := range []struct{ key, value string }{{"prefix", c.Prefix}, {"database.name", c.Database.Name}} {
		if !strings.Contains(n.value, sandboxMark) {
			return fmt.Errorf("api.sandbox: is for an installation with %q in its prefix and in database.name; %s is %q", sandboxMark, n.key, n.value)
		}
	}

	return nil
}

// Expirer is the configuration of cmd/expirer.
type Expirer struct {
	Common    `koanf:",squash"`
	Outbox    outbox.Config    `koanf:"outbox"`
	Expiry    expiry.Config    `koanf:"expiry"`
	Archive   archive.Config   `koanf:"archive"`
	Reconcile reconcile.Config `koanf:"reconcile"`
}

// DefaultExpirer returns the defaults.
func DefaultExpirer() Expirer {
	c := Expirer{
		Common: DefaultCommon(), Outbox: outbox.DefaultConfig(), Expiry: expiry.DefaultConfig(),
		Archive: archive.DefaultConfig(), Reconcile: reconcile.DefaultConfig(),
	}
	c.Admin.Address = ":9102"

	return c
}

// Notifier is the configuration of cmd/notifier.
type Notifier struct {
	Common  `koanf:",squash"`
	Notice  Notice         `koanf:"notice"`
	Yield   yield.Config   `koanf:"yield"` // of the gathering of notices, to events that wait to be told
	Profile profile.Config `koanf:"profile"`
	Wakeup  wakeup.Config  `koanf:"wakeup"`
}

// DefaultNotifier returns the defaults.
func DefaultNotifier() Notifier {
	c := Notifier{Common: DefaultCommon(), Notice: DefaultNotice(), Yield: yield.DefaultConfig(), Profile: profile.DefaultConfig(), Wakeup: wakeup.DefaultConfig()}
	c.Admin.Address = ":9103"

	return c
}
