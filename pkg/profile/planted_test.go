package profile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/coupon"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/profile"
	"github.com/lapsehq/lapse/pkg/secret"
	"github.com/lapsehq/lapse/pkg/store"
	"github.com/lapsehq/lapse/pkg/testenv"
)

const patience = 60 * time.Second

// planted are the parts of addresses by which they are found again.
var planted = []string{"pl4nted-mail", "17912345678", "pl4nted-t0ken", "pl4nted-n0ise"}

// Addresses that are sent through the real broker into the real database occur in no log line, metric, error or column, whether
// they are kept, refused, cannot be read, are sealed again or are removed with their user. In RabbitMQ they are gone with their
// messages.
func TestPlantedAddressesAppearNowhere(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	core, logs := observer.New(zapcore.DebugLevel)
	log := zap.New(core)
	reg := prometheus.NewRegistry()
	codec, err := event.NewCodec(testenv.Installation)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := store.Open(ctx, db.Config, codec, log, reg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })

	lc := ladder.DefaultConfig()
	lc.Prefix, lc.GroupSize, lc.Horizon = testenv.Prefix(t), 1, time.Minute
	l, err := ladder.New(lc)
	require.NoError(t, err)
	bc := broker.DefaultConfig()
	bc.URL, bc.ManagementURL, bc.Name = secret.New(os.Getenv("TEST_AMQP_URL")), secret.New(os.Getenv("TEST_MANAGEMENT_URL")), "test"
	client, err := broker.New(bc, broker.Options{Role: "test", Plan: l.Plan(), Log: log, Registerer: reg})
	require.NoError(t, err)
	require.NoError(t, client.Declare(ctx, l.Plan()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, client.Delete(ctx, l.Plan()))
	})
	publisher := client.NewPublisher()
	testenv.Run(t, publisher.Run)
	require.NoError(t, publisher.WaitReady(ctx))

	cfg := profile.DefaultConfig()
	cfg.Addresses = keys(1)
	k, err := profile.New(cfg, s, l.ParkExchange(), log, reg)
	require.NoError(t, err)
	consumer, err := client.NewConsumer(broker.ConsumerOptions{
		Config: cfg.Consumer(), Queue: l.Users(), Handler: k.Handle, Ready: s.Ping, Publisher: publisher, ParkExchange: l.ParkExchange(),
	})
	require.NoError(t, err)
	testenv.Run(t, consumer.Run)

	full := coupon.Addresses{Email: planted[0] + "@example.com", Phone: "+" + planted[1], Push: planted[2]}
	send := func(key, contentType string, body []byte) {
		t.Helper()
		errs := publisher.Publish(ctx, []broker.Message{{Exchange: l.Users(), Key: key, ID: "m", Body: body, ContentType: contentType, Mandatory: true}})
		require.NoError(t, errors.Join(errs...))
	}
	for i := range 20 {
		user := fmt.Sprintf("u%d", i)
		key, body := codec.User("e", coupon.UserEvent{UserID: user, At: at, Profile: &coupon.ProfileChange{Locale: "en", Addresses: full}})
		send(key, event.ContentType, body)
	}
	for _, body := range []string{
		`{"user_id":"u","at":"2026-10-01T00:00:00Z","addresses":{"email":"pl4nted-mail","phone":"17912345678 x","push":"pl4nted-t0ken x"}}`,
		`{"user_id":"u","at":"pl4nted-n0ise","addresses":"pl4nted-mail@example.com"}`,
		`{"user_id":"u","at":"2026-10-01T00:00:00Z","locale":"pl4nted-n0ise@","zone":"pl4nted-n0ise","pl4nted-n0ise":1,"pl4nted-n0ise":2}`,
		`pl4nted-mail@example.com`,
		`{"user_id":"u","at":"2026-10-01T00:00:00Z","addresses":{"push":"` + strings.Repeat(`\"`, 1000) + planted[2] + `"}}`,
	} {
		send(event.KeyUserProfile, "application/json", []byte(body))
	}
	send("pl4nted-n0ise", "application/json", []byte(`{"user_id":"u"}`))
	stored := func(n int64) func() bool {
		return func() bool { return db.Int(t, `SELECT COUNT(*) FROM user_profile WHERE address_key = 'k1'`) == n }
	}
	testenv.Wait(t, "profiles", stored(20))
	testenv.Wait(t, "the unreadable to be parked", func() bool {
		depths, err := client.Depths(ctx, []string{l.Parked(), l.Users()})
		require.NoError(t, err)
		return depths[l.Parked()] == 6 && depths[l.Users()] == 0
	})
	ps, err := s.Profiles(ctx, []string{"u7"})
	require.NoError(t, err)
	p := ps["u7"]
	got, err := k.Addresses(&p)
	require.NoError(t, err)
	require.Equal(t, full, got)

	var errs []string
	note := func(err error) {
		require.Error(t, err)
		errs = append(errs, err.Error())
	}
	p.UserID = "u8"
	_, err = k.Addresses(&p)
	note(err)
	p.Key = "k9"
	_, err = k.Addresses(&p)
	note(err)
	dump := everything(t, db)
	require.Contains(t, dump, "u7", "the search finds what is there")

	// Rotation, then an erasure.
	cfg.Addresses = keys(2)
	next, err := profile.New(cfg, s, l.ParkExchange(), log, prometheus.NewRegistry())
	require.NoError(t, err)
	require.NoError(t, next.Look(ctx))
	require.True(t, stored(0)())
	_, err = s.EraseUser(ctx, "u7", "ann", "asked for it")
	require.NoError(t, err)
	dump += everything(t, db)

	families, err := reg.Gather()
	require.NoError(t, err)
	places := map[string]string{"tables": dump, "metrics": fmt.Sprint(families), "errors": strings.Join(errs, "\n")}
	for _, e := range logs.All() {
		places["log"] += fmt.Sprintln(e.Message, e.ContextMap())
	}
	require.Contains(t, places["log"], "user event parked")
	for place, text := range places {
		for _, address := range planted {
			require.NotContains(t, text, address, place)
		}
	}
	parked, err := client.Take(ctx, l.Parked(), 10, func(d broker.Delivery) error {
		shown := fmt.Sprintf("%s %+v", d.Body, d.Headers)
		for _, address := range planted {
			require.NotContains(t, shown, address, "parked")
		}
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, 6, parked)
}

// everything is the text of every column of every table; what is binary as its bytes.
func everything(t *testing.T, db testenv.Database) string {
	t.Helper()
	tables, err := db.SQL.QueryContext(t.Context(), `SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()`)
	require.NoError(t, err)
	defer tables.Close()
	var names []string
	for tables.Next() {
		var name string
		require.NoError(t, tables.Scan(&name))
		names = append(names, name)
	}
	require.NoError(t, tables.Err())
	require.Contains(t, names, "user_profile")
	var b bytes.Buffer
	for _, name := range names {
		rows, err := db.SQL.QueryContext(t.Context(), "SELECT * FROM `"+name+"`")
		require.NoError(t, err)
		columns, err := rows.Columns()
		require.NoError(t, err)
		values, dest := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			dest[i] = &values[i]
		}
		for rows.Next() {
			require.NoError(t, rows.Scan(dest...))
			for _, v := range values {
				if raw, ok := v.([]byte); ok {
					b.Write(raw)
				} else {
					fmt.Fprint(&b, v)
				}
				b.WriteByte('\n')
			}
		}
		require.NoError(t, rows.Err())
		rows.Close()
	}
	return b.String()
}
