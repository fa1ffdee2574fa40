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

// Where somebody else makes the topology a worker may look at it, publish and consume where it has to, and nothing else.
func TestPermissionsOfARole(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	stack, err := rig.LoadStack(os.LookupEnv)
	require.NoError(t, err)
	require.NoError(t, stack.Check(e.ctx()))
	allowed, err := e.ladder.PermissionsOf("expirer", false)
	require.NoError(t, err)
	account := rig.Account{Name: e.ladder.Prefix() + "-expirer", Password: "p"}
	require.NoError(t, stack.MakeBrokerUser(e.ctx(), account, allowed))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, stack.DropBrokerUser(ctx, account.Name))
	})
	u, err := url.Parse(e.cfg.URL.Reveal())
	require.NoError(t, err)
	u.User = url.UserPassword(account.Name, account.Password)
	cfg := e.cfg
	cfg.URL, cfg.ManagementURL, cfg.Topology.Declare = secret.New(u.String()), secret.String{}, false
	worker := e.client(cfg)
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
