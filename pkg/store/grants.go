package store

import (
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Role is who connects: what a database user of its own may do.
type Role string

// The roles.
const (
	RolePublisher Role = "publisher"
	RoleExpirer   Role = "expirer"
	RoleNotifier  Role = "notifier"
	RoleOperator  Role = "operator" // lapsectl, with all its commands but migrate
	RoleReader    Role = "reader"   // lapsectl and people that only look
	RoleMigrate   Role = "migrate"  // lapsectl migrate
)

// Roles lists them all.
func Roles() []Role {
	return []Role{RolePublisher, RoleExpirer, RoleNotifier, RoleOperator, RoleReader, RoleMigrate}
}

// groups are the first words of the names of the statements that a worker runs.
func groups() map[Role][]string {
	every := []string{"beat", "clock", "effects", "operator", "pause", "read", "remind", "setting", "status", "store"}
	return map[Role][]string{
		RolePublisher: append([]string{
			"act", "archive", "expire", "explain", "forecast", "heartbeat", "idempotency", "issue", "list", "notice", "outbox", "overview", "parked",
			"plan", "profile", "quota", "seed", "stats", "template",
		}, every...),
		RoleExpirer: append([]string{
			"act", "archive", "expire", "forecast", "outbox", "quota", "reconcile", "remove", "repair", "stats", "sweep", "template",
		}, every...),
		RoleNotifier: append([]string{
			"erase", "issue", "list", "notice", "outbox", "profile", "quota", "template", "upcoming",
		}, every...),
	}
}

const versionTable = "goose_db_version"

// Grants gives the statements that let a user, who exists, do what the role does in the database, and nothing else. Those of the
// workers follow from the statements that they run. Neither name is checked: they are the operator's.
func Grants(role Role, database, user, host string) ([]string, error) {
	to := fmt.Sprintf("TO '%s'@'%s'", user, host)
	on := "`" + database + "`"
	switch role {
	case RoleMigrate:
		return []string{"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP, INDEX, REFERENCES ON " + on + ".* " + to}, nil
	case RoleOperator:
		return []string{"GRANT SELECT, INSERT, UPDATE, DELETE ON " + on + ".* " + to}, nil
	case RoleReader:
		return []string{"GRANT SELECT ON " + on + ".* " + to}, nil
	case RolePublisher, RoleExpirer, RoleNotifier: // below
	}
	tables, err := Needs(role)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, table := range slices.Sorted(maps.Keys(tables)) {
		out = append(out, fmt.Sprintf("GRANT %s ON %s.`%s` %s", strings.Join(tables[table], ", "), on, table, to))
	}
	return out, nil
}

// Needs gives what a worker needs: privileges by table, in order.
func Needs(role Role) (map[string][]string, error) {
	mine, ok := groups()[role]
	if !ok {
		return nil, fmt.Errorf("role: must be one of %v, got %q", Roles(), role)
	}
	known, err := tables()
	if err != nil {
		return nil, err
	}
	needs := map[string]map[string]bool{versionTable: {"SELECT": true}}
	for _, st := range registry {
		group, _, _ := strings.Cut(st.Name, ".")
		if !slices.Contains(mine, group) {
			continue
		}
		for table, privileges := range st.needs() {
			if !known[table] {
				continue // an alias, or a table within the statement
			}
			if needs[table] == nil {
				needs[table] = map[string]bool{}
			}
			for _, p := range privileges {
				needs[table][p] = true
			}
		}
	}
	// Everyone tries at start whether a locked row is skipped.
	needs["setting"]["UPDATE"] = true
	out := make(map[string][]string, len(needs))
	for table, privileges := range needs {
		for _, p := range []string{"SELECT", "INSERT", "UPDATE", "DELETE"} {
			if privileges[p] {
				out[table] = append(out[table], p)
			}
		}
	}
	return out, nil
}

// tables are those that the migrations make.
func tables() (map[string]bool, error) {
	files, err := Migrations()
	if err != nil {
		return nil, err
	}
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	known := map[string]bool{}
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("migrations: %w", err)
		}
		for _, m := range regexp.MustCompile(`(?i)CREATE TABLE (?:IF NOT EXISTS )?([a-z_]+)`).FindAllStringSubmatch(string(text), -1) {
			known[m[1]] = true
		}
	}
	return known, nil
}

// needs gives what the statement needs, by what may be a table.
func (st Statement) needs() map[string][]string {
	text := strings.Join(strings.Fields(st.SQL), " ")
	out := map[string][]string{}
	add := func(table string, privileges ...string) {
		if table != "" {
			out[table] = append(out[table], privileges...)
		}
	}
	locks := strings.Contains(text, "FOR UPDATE")
	upsert := strings.Contains(text, "ON DUPLICATE KEY UPDATE")
	text = strings.NewReplacer("FOR UPDATE", "", "ON DUPLICATE KEY UPDATE", "").Replace(text)
	for _, m := range regexp.MustCompile(`INSERT (?:IGNORE )?INTO ([a-z_]+)`).FindAllStringSubmatch(text, -1) {
		add(m[1], "INSERT")
		if upsert {
			add(m[1], "UPDATE", "SELECT") // what is there is read
		}
	}
	for _, m := range regexp.MustCompile(`UPDATE ([a-z_]+)`).FindAllStringSubmatch(text, -1) {
		add(m[1], "UPDATE", "SELECT")
	}
	for _, m := range regexp.MustCompile(`DELETE (?:[a-z_]+ )?FROM ([a-z_]+)`).FindAllStringSubmatch(text, -1) {
		add(m[1], "DELETE", "SELECT")
	}
	for _, m := range regexp.MustCompile(`(?:FROM|JOIN) \(?([a-z_]+)(?: (?:AS )?[a-z_]+)?(?:, ([a-z_]+))?`).FindAllStringSubmatch(text, -1) {
		for _, table := range m[1:] {
			add(table, "SELECT")
			if locks && table != "" {
				add(table, "UPDATE") // or it cannot lock
			}
		}
	}
	return out
}
