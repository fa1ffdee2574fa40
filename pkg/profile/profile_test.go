package profile_test

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/lapsehq/lapse/pkg/profile"
	"github.com/lapsehq/lapse/pkg/secret"
)

var at = time.Date(2026, 10, 1, 8, 30, 0, 0, time.UTC)

// memory is a store that refuses the users whom it cannot store.
type memory struct {
	profile.Store

	known  map[string]coupon.Known
	refuse string
	err    error
	calls  int
}

func (m *memory) ApplyUserEvents(_ context.Context, evs []coupon.UserEvent) error {
	m.calls++
	if m.err != nil {
		return m.err
	}
	for i := range evs {
		if evs[i].UserID == m.refuse {
			return fmt.Errorf("s3cret: %w", coupon.ErrIntegrity)
		}
	}
	for i := range evs {
		k := m.known[evs[i].UserID]
		k.UserID = evs[i].UserID
		k.Apply(&evs[i], at.AddDate(1, 0, 0))
		m.known[evs[i].UserID] = k
	}
	return nil
}

func delivery(t *testing.T, e coupon.UserEvent) broker.Delivery {
	t.Helper()
	codec, err := event.NewCodec("test")
	require.NoError(t, err)
	key, body := codec.User("e", e)
	return broker.Delivery{Body: body, Key: key, ContentType: event.ContentType, Queue: "q"}
}

func told(user string) coupon.UserEvent {
	return coupon.UserEvent{UserID: user, At: at, Profile: &coupon.ProfileChange{Locale: "en", Addresses: coupon.Addresses{Email: "s3cret@example.com"}}}
}

func keeper(t *testing.T, s profile.Store, c secret.KeyringConfig) (*profile.Keeper, *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	cfg := profile.DefaultConfig()
	cfg.Addresses = c
	k, err := profile.New(cfg, s, "park", zap.New(core), prometheus.NewRegistry())
	require.NoError(t, err)
	return k, logs
}

func TestAddressesAreSealedBeforeTheyAreStored(t *testing.T) {
	m := &memory{known: map[string]coupon.Known{}}
	k, _ := keeper(t, m, keys(1))
	out, err := k.Handle(t.Context(), []broker.Delivery{delivery(t, told("u"))})
	require.NoError(t, err)
	require.Equal(t, []broker.Outcome{broker.Ack()}, out)
	p := m.known["u"].Profile
	require.Equal(t, "k1", p.Key)
	require.NotContains(t, string(p.Sealed), "s3cret")
	a, err := k.Addresses(&p)
	require.NoError(t, err)
	require.Equal(t, coupon.Addresses{Email: "s3cret@example.com"}, a)
	p.UserID = "v"
	_, err = k.Addresses(&p)
	require.ErrorIs(t, err, secret.ErrSealed)
	a, err = k.Addresses(&coupon.Profile{UserID: "u"})
	require.NoError(t, err)
	require.Zero(t, a)
}

func TestWithoutKeysAddressesAreDroppedAndThatIsSaidOnce(t *testing.T) {
	m := &memory{known: map[string]coupon.Known{}}
	k, logs := keeper(t, m, secret.KeyringConfig{})
	require.False(t, k.Keeps())
	for range 3 {
		_, err := k.Handle(t.Context(), []broker.Delivery{delivery(t, told("u")), delivery(t, told("v"))})
		require.NoError(t, err)
	}
	require.Equal(t, "en", m.known["u"].Locale)
	require.Empty(t, m.known["u"].Sealed)
	require.Len(t, logs.FilterMessageSnippet("addresses of users are not kept").All(), 1)
}

// What cannot be read or stored is set aside by itself, and says nothing of what was in it.
func TestTheBadArePartedFromTheGood(t *testing.T) {
	m := &memory{known: map[string]coupon.Known{}, refuse: "bad"}
	k, logs := keeper(t, m, keys(1))
	unread := delivery(t, told("u"))
	unread.Body = []byte(`{"user_id":"s3cret","addresses":{"email":"s3cret"},"at":"s3cret"}`)
	unread.ContentType, unread.Headers = "application/json", map[string]any{"x": "s3cret", broker.HeaderTrace: "t"}
	batch := []broker.Delivery{delivery(t, told("a")), unread, delivery(t, told("bad")), delivery(t, told("b"))}
	out, err := k.Handle(t.Context(), batch)
	require.NoError(t, err)
	require.Equal(t, broker.Ack(), out[0])
	require.Equal(t, broker.Ack(), out[3])
	require.Contains(t, m.known, "a")
	require.Contains(t, m.known, "b")
	for _, i := range []int{1, 2} {
		shown := fmt.Sprintf("%+v", out[i])
		require.NotContains(t, shown, "s3cret")
		require.NotContains(t, shown, "115 51 99 114 101 116", "as bytes")
		require.Contains(t, shown, "park")
	}
	require.Contains(t, fmt.Sprintf("%+v", out[1]), "addresses.email: must be an address")
	for _, e := range logs.All() {
		require.NotContains(t, fmt.Sprint(e), "s3cret")
	}

	m.err = coupon.ErrUnavailable
	_, err = k.Handle(t.Context(), batch)
	require.ErrorIs(t, err, coupon.ErrUnavailable)
}

// The longest addresses that are read fit into their column, sealed.
func TestTheLongestAddressesFit(t *testing.T) {
	book, err := profile.NewBook(keys(1))
	require.NoError(t, err)
	for _, filler := range []string{"x", "<", `"`, `\`} {
		c := coupon.ProfileChange{Addresses: coupon.Addresses{
			Email: strings.Repeat("过", 80) + "@example.com", Phone: "+" + strings.Repeat("1", event.MaxPhone-1), Push: strings.Repeat(filler, event.MaxPush),
		}}
		want := c.Addresses
		_, err = book.Seal("u", &c)
		if filler == `"` || filler == `\` {
			require.ErrorIs(t, err, profile.ErrTooLong, "twice as long once written")
			continue
		}
		require.NoError(t, err)
		require.LessOrEqual(t, len(c.Sealed), profile.MaxSealed)
		require.Zero(t, c.Addresses)
		got, err := book.Addresses(&coupon.Profile{UserID: "u", Sealed: c.Sealed, Key: c.Key})
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestConfigNamesItsFaults(t *testing.T) {
	require.NoError(t, profile.DefaultConfig().Validate())
	c := profile.Config{Linger: -1, Retention: 1, Prefetch: -1, Addresses: secret.KeyringConfig{Active: "k"}}
	err := c.Validate()
	for _, field := range []string{"batch: ", "linger: ", "prefetch: ", "concurrency: ", "retention: ", "interval: ", "page: ", "addresses: active: "} {
		require.ErrorContains(t, err, field)
	}
	_, err = profile.New(c, nil, "", zap.NewNop(), prometheus.NewRegistry())
	require.Error(t, err)
	require.NotErrorIs(t, err, errors.ErrUnsupported)
}

// rows is a store of sealed addresses.
type rows struct {
	memory

	sealed map[string]coupon.Sealed
	pruned []int
	before time.Time
}

func (r *rows) Now(context.Context) (time.Time, error) { return at, nil }

func (r *rows) PruneProfiles(_ context.Context, before time.Time, limit int) (int, bool, error) {
	r.before = before
	n := r.pruned[0]
	r.pruned = r.pruned[1:]
	return n, n == limit, nil
}

func (r *rows) AddressKeys(context.Context) (out []string, err error) {
	return []string{"k0", "k1", "k2"}, nil
}

func (r *rows) SealedWith(_ context.Context, key, after string, limit int) (out []coupon.Sealed, err error) {
	for i := range 26 {
		user := string(rune('a' + i))
		if s, there := r.sealed[user]; there && s.Key == key && user > after && len(out) < limit {
			out = append(out, s)
		}
	}
	return out, nil
}

func (r *rows) Reseal(_ context.Context, from, to []coupon.Sealed) (int, error) {
	for i := range from {
		r.sealed[from[i].UserID] = to[i]
	}
	return len(from), nil
}

func TestLookPrunesAndRotates(t *testing.T) {
	r := &rows{sealed: map[string]coupon.Sealed{}, pruned: []int{2, 1}}
	old, err := profile.NewBook(keys(1))
	require.NoError(t, err)
	for i := range 5 {
		user := string(rune('a' + i))
		c := coupon.ProfileChange{Addresses: coupon.Addresses{Phone: "+49" + user}}
		_, err := old.Seal(user, &c)
		require.NoError(t, err)
		r.sealed[user] = coupon.Sealed{UserID: user, Addresses: c.Sealed, Key: c.Key}
	}
	lost := coupon.Sealed{UserID: "x", Addresses: []byte("of a key that is gone"), Key: "k0"}
	r.sealed["x"] = lost
	cfg := profile.DefaultConfig()
	cfg.Addresses, cfg.Page, cfg.Retention = keys(2), 2, 48*time.Hour
	core, logs := observer.New(zapcore.DebugLevel)
	reg := prometheus.NewRegistry()
	k, err := profile.New(cfg, r, "park", zap.New(core), reg)
	require.NoError(t, err)
	require.NoError(t, k.Look(t.Context()))
	require.Equal(t, at.Add(-48*time.Hour), r.before)
	require.Empty(t, r.pruned)
	require.Equal(t, lost, r.sealed["x"])
	for i := range 5 {
		user := string(rune('a' + i))
		s := r.sealed[user]
		require.Equal(t, "k2", s.Key)
		a, err := k.Addresses(&coupon.Profile{UserID: user, Sealed: s.Addresses, Key: s.Key})
		require.NoError(t, err)
		require.Equal(t, "+49"+user, a.Phone)
	}
	require.Len(t, logs.FilterMessage("addresses sealed again").All(), 1)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "lapse_user_addresses_locked" {
			require.InDelta(t, 1, f.GetMetric()[0].GetGauge().GetValue(), 0)
		}
	}
}
