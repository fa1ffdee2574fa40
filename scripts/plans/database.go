package main

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-sql-driver/mysql"
	"go.uber.org/zap"

	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
)

// database is one of the command's own, on the stack of this checkout alone.
type database struct {
	SQL   *sql.DB
	admin *sql.DB
	name  string
}

func open(ctx context.Context) (*database, error) {
	stack, err := rig.LoadStack(os.LookupEnv)
	if err != nil {
		return nil, err //nolint:wrapcheck // says what to do
	}
	if err := stack.Check(ctx); err != nil {
		return nil, err //nolint:wrapcheck // names the address
	}
	base, err := mysql.ParseDSN(stack.DSN.Reveal())
	if err != nil {
		return nil, errors.New("TEST_MYSQL_DSN: must be user:password@tcp(host:port)/database") // the parser's error would show the password
	}
	// As the store's own connections are.
	base.ParseTime, base.InterpolateParams, base.ClientFoundRows, base.Collation = true, true, true, "utf8mb4_bin"
	base.Params = map[string]string{
		"time_zone": "'+00:00'",
		"sql_mode":  "'STRICT_ALL_TABLES,NO_ZERO_DATE,NO_ZERO_IN_DATE,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'",
	}
	token := make([]byte, 6)
	if _, err := rand.Read(token); err != nil {
		return nil, fmt.Errorf("random name: %w", err)
	}
	db := &database{name: "lapse_t_" + hex.EncodeToString(token)}
	if db.admin, err = connect(base); err != nil {
		return nil, err
	}
	if _, err := db.admin.ExecContext(ctx, "CREATE DATABASE "+db.name+" CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"); err != nil {
		return nil, errors.Join(fmt.Errorf("create database: %w", err), db.admin.Close())
	}
	own := base.Clone()
	own.DBName = db.name
	if db.SQL, err = connect(own); err == nil {
		err = migrate(ctx, own)
	}
	if err != nil {
		return nil, errors.Join(err, db.drop())
	}
	return db, nil
}

func connect(c *mysql.Config) (*sql.DB, error) {
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	return sql.OpenDB(connector), nil
}

func migrate(ctx context.Context, own *mysql.Config) error {
	c := store.DefaultConfig()
	c.Address, c.User, c.Password, c.Name = own.Addr, own.User, secret.New(own.Passwd), own.DBName
	schema, err := store.OpenSchema(ctx, c, zap.NewNop())
	if err != nil {
		return err //nolint:wrapcheck // says what it does
	}
	return errors.Join(schema.Up(ctx), schema.Close())
}

// drop removes the database, also when the context has ended.
func (db *database) drop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := db.admin.ExecContext(ctx, "DROP DATABASE "+db.name)
	if db.SQL != nil {
		err = errors.Join(err, db.SQL.Close())
	}
	return errors.Join(err, db.admin.Close())
}
