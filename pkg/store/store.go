package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	gormmysql "gorm.io/driver/mysql"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/lapsehq/lapse/pkg/certs"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/pulse"
	"github.com/lapsehq/lapse/pkg/secret"
)

// Config says how to reach the database.
type Config struct {
	Address      string        `koanf:"address"`        // host:port
	User         string        `koanf:"user"`           //
	Password     secret.String `koanf:"password"`       //
	Name         string        `koanf:"name"`           // the database
	TLS          TLSConfig     `koanf:"tls"`            // default off
	MaxOpen      int           `koanf:"max_open"`       // connections at most; default 16
	DialTimeout  time.Duration `koanf:"dial_timeout"`   // default 3s
	ReadTimeout  time.Duration `koanf:"read_timeout"`   // default 12s: above the longest transaction
	WriteTimeout time.Duration `koanf:"write_timeout"`  // default 5s
	LockWait     time.Duration `koanf:"lock_wait"`      // innodb_lock_wait_timeout, whole seconds; default 3s
	TxLimit      time.Duration `koanf:"tx_limit"`       // the longest a transaction may live; the planner's guard counts on it; default 10s
	Migrate      string        `koanf:"migrate"`        // auto | verify; default verify
	MigrateLimit time.Duration `koanf:"migrate_within"` // how long start-up may migrate; default 2m
	Slow         time.Duration `koanf:"slow"`           // a statement that takes longer is logged and counted; 0: none is; default 500ms
	// Reader is for who only looks, with a user who may only look: a server that is read-only will do, and nothing is tried out.
	// Not a setting.
	Reader bool `koanf:"-"`
}

// TLSConfig says whether connections are encrypted.
type TLSConfig struct {
	Enabled      bool `koanf:"enabled"`
	certs.Config `koanf:",squash"`
}

// Validate reports every fault, each beginning with the field's name.
func (c TLSConfig) Validate() error {
	if !c.Enabled && c.Config != (certs.Config{}) {
		return errors.New("enabled: must be true where something else of tls is set, got false")
	}
	return c.Config.Validate()
}

// DefaultConfig gives the documented defaults.
func DefaultConfig() Config {
	return Config{
		Address: "127.0.0.1:3306", User: "lapse", Name: "lapse", MaxOpen: 16,
		DialTimeout: 3 * time.Second, ReadTimeout: 12 * time.Second, WriteTimeout: 5 * time.Second,
		LockWait: 3 * time.Second, TxLimit: 10 * time.Second, Migrate: "verify", MigrateLimit: 2 * time.Minute,
		Slow: 500 * time.Millisecond,
	}
}

// Validate reports every fault, each beginning with the field's name.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, _, err := net.SplitHostPort(c.Address); err != nil {
		bad("address: must be host:port, got %q", c.Address)
	}
	if c.User == "" {
		bad("user: must not be empty")
	}
	if c.Name == "" || len(c.Name) > 64 {
		bad("name: must have 1 to 64 characters, got %q", c.Name)
	}
	if c.MaxOpen < 2 || c.MaxOpen > 1000 {
		bad("max_open: must be between 2 and 1000, got %d", c.MaxOpen)
	}
	between := func(field string, v, low, high time.Duration) {
		if v < low || v > high {
			bad("%s: must be between %s and %s, got %s", field, low, high, v)
		}
	}
	between("dial_timeout", c.DialTimeout, 100*time.Millisecond, time.Minute)
	between("read_timeout", c.ReadTimeout, time.Second, 5*time.Minute)
	between("write_timeout", c.WriteTimeout, time.Second, 5*time.Minute)
	between("lock_wait", c.LockWait, time.Second, 8*time.Second)
	between("tx_limit", c.TxLimit, time.Second, 30*time.Second)
	between("migrate_within", c.MigrateLimit, time.Second, time.Hour)
	between("slow", c.Slow, 0, time.Minute)
	if c.Migrate != "auto" && c.Migrate != "verify" {
		bad("migrate: must be auto or verify, got %q", c.Migrate)
	}
	return errors.Join(append(errs, certs.Below("tls", c.TLS.Validate()))...)
}

// Codec renders what the outbox will tell the broker. It is declared here so that store knows nothing of the wire.
type Codec interface {
	// Transition gives routing key, id and body of the transition's event.
	Transition(t coupon.Transition) (key, id string, body []byte, err error)
	// Refused gives routing key, id and body of the answer to a refused grant.
	Refused(g coupon.Grant, r coupon.Granted, at time.Time) (key, id string, body []byte, err error)
	RedeemRefused(r coupon.RedeemRefused) (key, id string, body []byte, err error)
	// Expiring gives routing key, id and body of a reminder's event.
	Expiring(e coupon.Expiring) (key, id string, body []byte)
	AtRisk(a coupon.AtRisk) (key, id string, body []byte)
	// Trigger gives the body of a trigger.
	Trigger(t coupon.Trigger) []byte
}

// Store is a pool of checked connections and the verbs. Safe for concurrent use.
type Store struct {
	db      *gorm.DB
	sql     *sql.DB
	primary *primary
	codec   Codec
	log     *zap.Logger
	metrics *metrics
	limit   time.Duration
	wake    wake
	terms   termsCache
	remind  remindCache
	peaks   peaks
	turns   turns
	brakes  brakes
	clock   func() func(db time.Time) error
	pulse   atomic.Pointer[pulse.Recorder] // nil: nobody asks how long statements take
}

// Open connects, checks the server and, by config, migrates or verifies the schema. It answers with a clear error
// when the server cannot be used at all (binlog_format=STATEMENT, SKIP LOCKED that does not skip, wrong schema).
func Open(ctx context.Context, c Config, codec Codec, log *zap.Logger, reg prometheus.Registerer) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("database config: %w", err)
	}
	primary := &primary{}
	pool := sql.OpenDB(connector{c, primary})
	pool.SetMaxOpenConns(c.MaxOpen)
	pool.SetMaxIdleConns(c.MaxOpen)
	pool.SetConnMaxIdleTime(9 * time.Second) // below wait_timeout
	pool.SetConnMaxLifetime(10 * time.Minute)
	s := &Store{sql: pool, primary: primary, codec: codec, log: log, metrics: newMetrics(reg, newSlow(c.Slow, log, time.Now)), limit: c.TxLimit}
	if err := s.start(ctx, c); err != nil {
		return nil, errors.Join(err, pool.Close())
	}
	return s, nil
}

func (s *Store) start(ctx context.Context, c Config) error {
	db, err := gorm.Open(gormmysql.New(gormmysql.Config{Conn: s.sql, SkipInitializeWithVersion: true}), &gorm.Config{
		SkipDefaultTransaction: true,
		TranslateError:         true,
		DisableAutomaticPing:   true,
		Logger:                 logger.Discard, // statements are counted and errors returned here, once
	})
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	s.db = db
	if err := s.checkServer(ctx); err != nil {
		return err
	}
	if c.Migrate == "auto" {
		if err := migrate(ctx, c, s.log); err != nil {
			return err
		}
	} else if err := s.VerifySchema(ctx); err != nil {
		return err
	}
	if c.Reader {
		return nil
	}
	return s.selfTest(ctx)
}

// Close ends every connection.
func (s *Store) Close() error {
	if err := s.sql.Close(); err != nil {
		return fmt.Errorf("close database: %w", err)
	}
	return nil
}

//nolint:gochecknoglobals // statements are constants
var (
	stmtNow  = define("store.now", `SELECT UTC_TIMESTAMP(3)`)
	stmtPing = define("store.ping", `SELECT 1`)
)

// Now reads the database's clock.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	var now time.Time
	err := s.queryRow(ctx, s.sql, stmtNow, []any{&now})
	return now, err
}

// GuardClock sets what tells whether a reading of the database's clock is believed (clock.Guard.Begin). Act asks it before
// it expires a coupon that an order gives back. Called before the store is used by several; without it every reading is
// believed.
func (s *Store) GuardClock(begin func() func(db time.Time) error) { s.clock = begin }

func (s *Store) beginClock() func(db time.Time) error {
	if s.clock == nil {
		return func(time.Time) error { return nil }
	}
	return s.clock()
}

// Ping reports whether the database answers within the context's deadline.
func (s *Store) Ping(ctx context.Context) error {
	var one int
	return s.queryRow(ctx, s.sql, stmtPing, []any{&one})
}
