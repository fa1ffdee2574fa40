package broker_test

import (
	"bytes"
	"net/http"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/broker"
)

func TestStartRefusesAHarmfulPolicyAndNamesIt(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	require.NoError(t, e.direct.Prepare(e.ctx()))
	name := e.ladder.Prefix() + "-short"
	put := func(method, body string) {
		req, err := http.NewRequestWithContext(e.ctx(), method, os.Getenv("TEST_MANAGEMENT_URL")+"/api/policies/lapse/"+name, bytes.NewBufferString(body))
		require.NoError(t, err)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		res, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Less(t, res.StatusCode, 300)
	}
	put(http.MethodPut, `{"pattern":"^`+e.ladder.DueUnlock()+`$","apply-to":"queues","priority":9,"definition":{"max-length":10}}`)
	defer put(http.MethodDelete, "")

	err := e.direct.Prepare(e.ctx())
	var p *broker.PolicyError
	require.ErrorAs(t, err, &p)
	require.True(t, broker.Refused(err))
	require.Equal(t, "policy "+name, p.Policy)
	require.Equal(t, e.ladder.DueUnlock(), p.Queue)
	require.Equal(t, "max-length", p.Key)
	require.ErrorContains(t, e.direct.Verify(e.ctx(), e.plan), name)
}
