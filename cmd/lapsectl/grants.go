package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/store"
)

type grantsCommand struct {
	Role     string `arg:"" help:"Who it is for: publisher, expirer, notifier, operator (lapsectl), reader (lapsectl that only looks), migrate."`
	User     string `placeholder:"NAME" help:"The user in database and broker; else <prefix>_<role>."`
	Host     string `default:"%" help:"Where the database's user comes from."`
	Server   string `default:"" placeholder:"SERVER" help:"database or broker, to print what one of them takes; else both."`
	Declared bool   `help:"The topology is made by lapsectl topology apply, not by the workers (topology.declare: false): less is allowed."`
}

// Help tells what to do with it.
func (*grantsCommand) Help() string {
	return "Nothing is changed, and no password is shown: make the user first. " +
		"lapsectl grants expirer --server database | mysql; lapsectl grants expirer --server broker | sh"
}

// Run prints.
func (c *grantsCommand) Run(s *system) error {
	if !slices.Contains(store.Roles(), store.Role(c.Role)) {
		return fmt.Errorf("role: must be one of %v, got %q", store.Roles(), c.Role)
	}
	if c.Server != "" && c.Server != "database" && c.Server != "broker" {
		return fmt.Errorf("--server: must be database or broker, got %q", c.Server)
	}
	cfg, err := s.settings()
	if err != nil {
		return err
	}
	l, err := ladder.New(cfg.Ladder)
	if err != nil {
		return err //nolint:wrapcheck // names the fault
	}
	user := c.User
	if user == "" {
		user = strings.ReplaceAll(cfg.Prefix, "-", "_") + "_" + c.Role
	}
	if strings.ContainsAny(user+c.Host+cfg.Database.Name, "'`\\\"$") {
		return fmt.Errorf("--user, --host: must be without quotes, got %q and %q", user, c.Host)
	}
	var out strings.Builder
	if c.Server != "broker" {
		grants, err := store.Grants(store.Role(c.Role), cfg.Database.Name, user, c.Host)
		if err != nil {
			return err //nolint:wrapcheck // names the fault
		}
		fmt.Fprintf(&out, "-- CREATE USER '%s'@'%s' IDENTIFIED BY '…' REQUIRE SSL;\n%s;\n", user, c.Host, strings.Join(grants, ";\n"))
	}
	if c.Server != "database" && c.Role != string(store.RoleMigrate) {
		p, err := l.PermissionsOf(c.Role, !c.Declared)
		if err != nil {
			return err //nolint:wrapcheck // names the fault
		}
		fmt.Fprintf(&out, "# rabbitmqctl add_user %s\nrabbitmqctl set_permissions -p VHOST %s '%s' '%s' '%s'\n", user, user, p.Configure, p.Write, p.Read)
	}
	return s.print(out.String())
}
