package rig_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/rig"
)

func TestAStackMayHaveSeveralNodes(t *testing.T) {
	t.Parallel()
	s, err := rig.LoadStack(lookup(described()))
	require.NoError(t, err)
	require.Equal(t, 1, s.Nodes())
	require.Empty(t, s.ManagementAddresses())
	vars := described()
	vars["TEST_AMQP_ADDRESSES"] = "127.0.0.1:772,127.0.0.1:802,127.0.0.1:832"
	s, err = rig.LoadStack(lookup(vars))
	require.NoError(t, err)
	require.Equal(t, 3, s.Nodes())
	require.Equal(t, []string{"127.0.0.1:773", "127.0.0.1:803", "127.0.0.1:833"}, s.ManagementAddresses())
}

func TestCheckRefusesForeignNodes(t *testing.T) {
	t.Parallel()
	for _, foreign := range []string{"127.0.0.1:772,192.0.2.1:802", "127.0.0.1:772,127.0.0.1:5672", "127.0.0.1:772,nowhere"} {
		vars := described()
		vars["TEST_AMQP_ADDRESSES"] = foreign
		s, err := rig.LoadStack(lookup(vars))
		require.NoError(t, err)
		err = s.Check(t.Context())
		require.ErrorIs(t, err, rig.ErrForeign)
		require.ErrorContains(t, err, "TEST_AMQP_ADDRESSES")
	}
}

func TestNodesAreKnownByTheirNames(t *testing.T) {
	t.Parallel()
	for name, number := range map[string]int{"lapse-123@localhost": 1, "lapse-123-2@localhost": 2, "lapse-123-3@localhost": 3} {
		n, err := rig.NodeNumber(name)
		require.NoError(t, err)
		require.Equal(t, number, n, name)
	}
	_, err := rig.NodeNumber("rabbit@host")
	require.ErrorContains(t, err, `"rabbit@host" is no node of a stack`)
}
