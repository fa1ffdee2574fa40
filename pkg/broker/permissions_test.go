package broker_test

import (
	"context"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
	"github.com/lapsehq/lapse/pkg/rig"
	"github.com/lapsehq/lapse/pkg/secret"
)

// as is a client with what a role may do where it declares nothing.
func (e *env) as(role string) *broker.Client {
	e.Helper()
	stack, err := rig.LoadStack(os.LookupEnv)
	require.NoError(e, err)
	require.NoError(e, stack.Check(e.ctx()))
	allowed, err := e.ladder.PermissionsOf(role, false)
	require.NoError(e, err)
	account := rig.Account{Name: e.ladder.Prefix() + "-" + role, Password: "p"}
	require.NoError(e, stack.MakeBrokerUser(e.ctx(), account, allowed))
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(e, stack.DropBrokerUser(ctx, account.Name))
	})
	u, err := url.Parse(e.cfg.URL.Reveal())
	require.NoError(e, err)
	u.User = url.UserPassword(account.Name, account.Password)
	cfg := e.cfg
	cfg.URL, cfg.ManagementURL, cfg.Topology.Declare = secret.New(u.String()), secret.String{}, false
	return e.client(cfg)
}

// Where somebody else makes the topology a worker may look at it, publish and consume where it has to, and nothing else.
func TestPermissionsOfARole(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	worker := e.as("expirer")
	require.NoError(t, worker.Prepare(e.ctx()), "what is there can be verified")
	p := e.publisher(worker)
	noErrors(t, p.Publish(e.ctx(), []broker.Message{e.due("a")}))
	e.eventually("it waits where it is due", func() bool { return e.depth(e.ladder.DueExact()) == 1 })
	taken, err := worker.Take(e.ctx(), e.ladder.DueExact(), 1, func(broker.Delivery) error { return nil })
	require.NoError(t, err)
	require.Equal(t, 1, taken)

	require.Error(t, worker.Declare(e.ctx(), e.only(e.ladder.DueExact())))
	_, err = worker.Take(e.ctx(), e.ladder.Issuance(), 1, func(broker.Delivery) error { return nil })
	require.ErrorContains(t, err, "refused for user")
	forbidden := broker.Message{Exchange: e.ladder.Issuance(), Key: "k", ID: "b", Body: []byte("b")}
	require.ErrorIs(t, p.Publish(e.ctx(), []broker.Message{forbidden})[0], broker.ErrUnknown)
	e.eventually("it says what is forbidden", func() bool {
		err := p.Healthy()
		return err != nil && strings.Contains(err.Error(), "the user of broker.url lacks a permission")
	})
	_, err = e.ladder.PermissionsOf("cook", true)
	require.ErrorContains(t, err, `got "cook"`)
}

// The console runs as the publisher: it brings back what was parked to the queue that refused it, and to no other.
func TestAPublisherMayBringBackWhatWasParked(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	p := e.publisher(e.as("publisher"))
	for _, queue := range []string{e.ladder.Notice(), e.ladder.Ledger()} {
		noErrors(t, p.Publish(e.ctx(), []broker.Message{{Exchange: e.ladder.Replay(), Key: queue, ID: queue, Body: []byte("{}")}}))
		e.eventually("it is in "+queue, func() bool { return e.depth(queue) == 1 })
	}
	noErrors(t, p.Publish(e.ctx(), []broker.Message{{Exchange: e.ladder.Users(), Key: "user.activity", ID: "u", Body: []byte("{}")}}))
	forbidden := broker.Message{Key: e.ladder.Notice(), ID: "b", Body: []byte("b")}
	require.Error(t, p.Publish(e.ctx(), []broker.Message{forbidden})[0], "not by the default exchange, which leads to every queue")
}
