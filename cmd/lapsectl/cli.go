package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"

	"github.com/alecthomas/kong"

	"github.com/lapsehq/lapse/pkg/lifecycle"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/telemetry"
)

// cli is the command line. Each command has a file of its own.
type cli struct {
	Help    helpFlag    `short:"h" help:"Show what can be given here."`
	Version versionFlag `help:"Show the version."`
	Config  configFlag  `short:"c" placeholder:"FILE" help:"Read the configuration from this YAML file: any worker's. LAPSE__SECTION__KEY variables win over it."`

	Migrate   migrateCommand   `cmd:"" help:"Bring the database's schema up, take it down, or show where it is."`
	Template  templateCommand  `cmd:"" help:"Create, revise and show what coupons are issued from."`
	Grant     grantCommand     `cmd:"" help:"Ask for coupons, over RabbitMQ."`
	Order     orderCommand     `cmd:"" help:"Send events of orders by hand."`
	Events    eventsCommand    `cmd:"" help:"Watch events as they come."`
	Explain   explainCommand   `cmd:"" help:"Show what is known of a coupon."`
	Notice    noticeCommand    `cmd:"" help:"Look at notices and reminders, and have them sent again."`
	User      userCommand      `cmd:"" help:"Show what is stored of a user, erase it, and note what they do not want."`
	Stats     statsCommand     `cmd:"" help:"Show what became of a template's coupons, day by day."`
	Grants    grantsCommand    `cmd:"" help:"Print what users of their own for the workers may do in database and broker."`
	Token     tokenCommand     `cmd:"" help:"Make a token for the API, and its entry for the configuration."`
	Rebuild   rebuildCommand   `cmd:"" help:"Publish the triggers of all coupons again, for a broker that has lost them."`
	Topology  topologyCommand  `cmd:"" help:"Show, check, complete and move what stands on the broker."`
	Status    statusCommand    `cmd:"" help:"Show in one screen how everything is, and what needs attention."`
	Pause     pauseCommand     `cmd:"" help:"Pause expiry, notices or issuance, all of it or a part."`
	Resume    resumeCommand    `cmd:"" help:"Let go on what was paused."`
	Extend    extendCommand    `cmd:"" help:"Move the ends of many coupons."`
	Void      voidCommand      `cmd:"" help:"Withdraw many coupons."`
	Reinstate reinstateCommand `cmd:"" help:"Give many expired coupons back, with a later end."`
	Import    importCommand    `cmd:"" help:"Take coupons of another system over, observe them beside it first, and cut over."`
	Sweep     sweepCommand     `cmd:"" help:"Settle what is overdue, one pass, for an outside scheduler."`
	Reconcile reconcileCommand `cmd:"" help:"Hold the books against each other: counters, statistics, histories, orders."`
	Archive   archiveCommand   `cmd:"" help:"Move what finished long ago into the archive, one pass, for an outside scheduler."`
	Clock     clockCommand     `cmd:"" help:"Look at the clocks, and accept the database's after a jump."`
	Parked    parkedCommand    `cmd:"" help:"Look through what was set aside, and replay or discard it."`
	Forecast  forecastCommand  `cmd:"" help:"Show what comes due when, what it is worth, and which seconds are too full."`

	Completion completionCommand `cmd:"" help:"Print what makes a shell complete commands and flags."`

	Demo    demoCommand    `cmd:"" help:"Run the real processes, let coupons expire, and audit it from outside."`
	Sandbox sandboxCommand `cmd:"" help:"Run the fleet in sandbox mode with something of every kind, for integrators to try things with."`
	Verify  verifyCommand  `cmd:"" help:"Hold what was promised against what runs, check by check."`
	Chaos   chaosCommand   `cmd:"" help:"Let faults strike a fleet under load, and judge from outside whether every promise held."`
	Compare compareCommand `cmd:"" help:"Measure the delay mechanisms side by side on this machine."`
}

// Exit codes.
const (
	exitOK    = 0
	exitMiss  = 1 // it ran, and something is amiss
	exitError = 2 // it could not run, or not to its end
)

// errMiss says that the command ran to its end, has said what is amiss, and must exit with exitMiss.
var errMiss = errors.New("something is amiss")

// errShown ends a command line that only asked for help or version.
var errShown = errors.New("shown")

// system is everything that a command gets from outside.
type system struct {
	args           []string
	environ        []string
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         func(name string) (string, bool) // of the environment
	executable     string                           // lapsectl itself; the workers lie beside it
	dir            string                           // the working directory
	config         string                           // the file that --config names
	account        string                           // who runs it, by the operating system
}

func newSystem(args []string) *system {
	s := &system{args: args, environ: os.Environ(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, lookup: os.LookupEnv}
	// Neither can be had on every system; what needs them says so.
	s.executable, _ = os.Executable()
	s.dir, _ = os.Getwd()
	if account, err := user.Current(); err == nil {
		s.account = account.Username
	}
	return s
}

// bin is where the workers are.
func (s *system) bin() string { return filepath.Dir(s.executable) }

// stack finds this checkout's servers: by the environment, else by the scripts/stack above the executable or the
// working directory.
func (s *system) stack(ctx context.Context) (rig.Stack, error) {
	if _, set := s.lookup("STACK_DIR"); set {
		return rig.LoadStack(s.lookup)
	}
	for _, checkout := range []string{filepath.Dir(s.bin()), s.dir} {
		if _, err := os.Stat(filepath.Join(checkout, "scripts", "stack")); err == nil {
			return rig.ReadStack(ctx, checkout)
		}
	}
	return rig.LoadStack(s.lookup) // says what to do
}

func run(ctx context.Context, s *system) int {
	ctx, stop := lifecycle.Signals(ctx)
	defer stop()
	err := s.command(ctx)
	switch {
	case err == nil, errors.Is(err, errShown):
		return exitOK
	case errors.Is(err, errMiss):
		return exitMiss
	default:
		_, _ = fmt.Fprintln(s.stderr, "lapsectl:", err)
		return exitError
	}
}

func (s *system) command(ctx context.Context) error {
	parser, err := kong.New(&cli{},
		kong.Name("lapsectl"), kong.Description("Lapse: coupons that expire on the second."),
		kong.Writers(s.stdout, s.stderr), kong.NoDefaultHelp(), kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.BindTo(ctx, (*context.Context)(nil)), kong.Bind(s),
	)
	if err != nil {
		return fmt.Errorf("command line: %w", err)
	}
	args := s.args
	if len(args) == 0 {
		args = []string{"--help"}
	}
	command, err := parser.Parse(args)
	if err != nil {
		return err
	}
	return command.Run()
}

type helpFlag bool

// IgnoreDefault makes kong ask for the flag only if it was given.
func (helpFlag) IgnoreDefault() {}

// BeforeReset shows the help of whatever command was named.
func (helpFlag) BeforeReset(k *kong.Context) error { return errors.Join(k.PrintUsage(false), errShown) }

type versionFlag bool

// BeforeReset shows the version.
func (versionFlag) BeforeReset(s *system) error {
	_, err := fmt.Fprintln(s.stdout, telemetry.NewBuild("lapsectl", version))
	return errors.Join(err, errShown)
}
