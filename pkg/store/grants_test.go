package store_test

import (
	"database/sql"
	"slices"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

// What a worker needs follows from its statements, and no more: the whole of it is tried by the demo, whose workers have such users.
func TestNeedsAreThoseOfTheStatements(t *testing.T) {
	t.Parallel()
	needs := map[store.Role]map[string][]string{}
	for _, role := range []store.Role{store.RolePublisher, store.RoleExpirer, store.RoleNotifier} {
		var err error
		needs[role], err = store.Needs(role)
		require.NoError(t, err)
		require.Equal(t, []string{"SELECT"}, needs[role]["goose_db_version"], role)
		require.NotContains(t, needs[role]["operator_log"], "DELETE", role)
		require.NotContains(t, needs[role]["coupon_template"], "DELETE", role)
	}
	require.Contains(t, needs[store.RolePublisher]["coupon"], "INSERT")
	require.Contains(t, needs[store.RoleExpirer]["coupon_archive"], "INSERT")
	require.Contains(t, needs[store.RoleNotifier]["notice"], "UPDATE")
	require.NotContains(t, needs[store.RoleExpirer], "user_profile", "an expirer has nothing to do with addresses")
	require.Equal(t, []string{"SELECT"}, needs[store.RoleNotifier]["coupon_archive"])
	_, err := store.Needs(store.RoleReader)
	require.ErrorContains(t, err, `got "reader"`)
}

// What is not granted is refused by the server, and said.
func TestGrantsHold(t *testing.T) {
	t.Parallel()
	stack, db := testenv.Servers(t), testenv.NewDatabase(t)
	db.Store(t) // migrates
	account := rig.Account{Name: testenv.Prefix(t), Password: "p"}
	for role, tries := range map[store.Role]map[string]bool{
		store.RoleNotifier: {"DELETE FROM coupon": false, "DROP TABLE coupon": false, "SELECT COUNT(*) FROM coupon": true, "DELETE FROM coupon_archive": false},
		store.RoleReader:   {"SELECT COUNT(*) FROM user_profile": true, "UPDATE coupon SET status = 1": false, "INSERT INTO setting (name, value) VALUES ('a', '1')": false},
		store.RoleMigrate:  {"CREATE TABLE grants_try (id INT)": true, "CREATE DATABASE lapse_grants_try": false},
	} {
		grants, err := store.Grants(role, db.Config.Name, account.Name, "%")
		require.NoError(t, err)
		require.NoError(t, stack.MakeDatabaseUser(t.Context(), account, grants))
		own := mysql.NewConfig()
		own.Net, own.Addr, own.User, own.Passwd, own.DBName = "tcp", db.Config.Address, account.Name, account.Password, db.Config.Name
		connector, err := mysql.NewConnector(own)
		require.NoError(t, err)
		pool := sql.OpenDB(connector)
		for statement, allowed := range tries {
			_, err := pool.ExecContext(t.Context(), statement)
			var refused *mysql.MySQLError
			if allowed {
				require.NoError(t, err, "%s: %s", role, statement)
			} else {
				require.ErrorAs(t, err, &refused, "%s: %s", role, statement)
				require.Contains(t, []uint16{1142, 1044}, refused.Number, "%s: %s", role, statement)
			}
		}
		require.NoError(t, pool.Close())
		if role == store.RoleReader {
			readerOpens(t, db, account)
		}
		require.NoError(t, stack.DropDatabaseUser(t.Context(), account.Name))
	}
	for _, role := range store.Roles() {
		grants, err := store.Grants(role, "d", "u", "h")
		require.NoError(t, err)
		require.False(t, slices.ContainsFunc(grants, func(g string) bool { return strings.Contains(g, "*.*") || strings.Contains(g, "ALL") }))
	}
}

// Who only looks can open the store, and is told when it does more.
func readerOpens(t *testing.T, db testenv.Database, account rig.Account) {
	t.Helper()
	db.Config.User, db.Config.Password, db.Config.Migrate, db.Config.Reader = account.Name, secret.New(account.Password), "verify", true
	s := db.Store(t)
	_, err := s.Now(t.Context())
	require.NoError(t, err)
	err = s.RecordDeed(t.Context(), store.Deed{Actor: "a", Reason: "r", Action: "try"})
	require.ErrorIs(t, err, coupon.ErrUnavailable)
	require.ErrorContains(t, err, "database.user lacks a grant")
}
