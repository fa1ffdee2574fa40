package main

import (
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/event"
	"github.com/lapsehq/lapse/pkg/ladder"
	"github.com/lapsehq/lapse/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every sample of the release's events comes twice, in random order, with noise between them; the newest version stands.
func TestRepeatsAndDisorderChangeNothing(t *testing.T) {
	t.Parallel()
	db := testenv.NewDatabase(t)
	y := testenv.NewTopology(t, ladder.Level{Name: "s", Unit: time.Second, Digits: 1})
	queue := testenv.Prefix(t) + ".shop"
	dsn := mysql.NewConfig()
	dsn.Net, dsn.Addr, dsn.User, dsn.Passwd, dsn.DBName = "tcp", db.Config.Address, db.Config.User, db.Config.Password.Reveal(), db.Config.Name
	t.Cleanup(func() { dropped(t, queue) })
	heard, hears := io.Pipe()
	stop := testenv.Run(t, func(ctx context.Context) error {
		defer hears.Close()
		return run(ctx, []string{"-amqp", os.Getenv("TEST_AMQP_URL"), "-dsn", dsn.FormatDSN(), "-exchange", y.Ladder.Events(), "-queue", queue}, hears)
	})
	first := make([]byte, len("listening"))
	_, err := io.ReadFull(heard, first)
	require.NoError(t, err)
	require.Equal(t, "listening", string(first))
	go func() { _, _ = io.Copy(io.Discard, heard) }()

	var ms []broker.Message
	ids, newest := map[string]bool{}, map[string]uint32{}
	for _, typ := range []string{event.TypeExpired, event.TypeUsed, event.TypeRefunded, event.TypeVoided, event.TypeReinstated} {
		samples, err := event.Samples(typ)
		require.NoError(t, err)
		for _, s := range samples {
			m := broker.Event(y.Ladder.Events(), strings.TrimSuffix(typ, ".v1"), s.ID, "", s.Body)
			ms = append(ms, m, m)
			var e struct {
				Data struct {
					CouponID string `json:"coupon_id"`
					Version  uint32 `json:"version"`
				} `json:"data"`
			}
			require.NoError(t, json.Unmarshal(s.Body, &e))
			ids[s.ID] = true
			newest[e.Data.CouponID] = max(newest[e.Data.CouponID], e.Data.Version)
		}
	}
	require.Greater(t, len(ids), 5)
	ms = append(ms, broker.Event(y.Ladder.Events(), "coupon.expired", "m", "", []byte("no JSON")))
	rand.Shuffle(len(ms), func(i, k int) { ms[i], ms[k] = ms[k], ms[i] })
	for _, err := range y.Publisher.Publish(t.Context(), ms) {
		require.NoError(t, err)
	}
	testenv.Wait(t, "what cannot be read to be parked, and the rest to be done", func() bool {
		d, err := y.Client.Depths(t.Context(), []string{queue, queue + ".parked"})
		return err == nil && d[queue+".parked"] == 1 && db.Int(t, `SELECT COUNT(*) FROM lapse_seen`) == int64(len(ids))
	})
	for id, version := range newest {
		require.EqualValues(t, version, db.Int(t, `SELECT version FROM coupon_fate WHERE coupon_id = ?`, id))
	}
	stop()
}

func dropped(t *testing.T, queue string) {
	t.Helper()
	conn, err := amqp.Dial(os.Getenv("TEST_AMQP_URL"))
	require.NoError(t, err)
	ch, err := conn.Channel()
	require.NoError(t, err)
	for _, name := range []string{queue, queue + ".parked"} {
		_, err = ch.QueueDelete(name, false, false, false)
		require.NoError(t, err)
	}
	require.NoError(t, conn.Close())
}
