package policy_test

import (
	"os"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // whatever the host has

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// zones are all of the tz database, links included, and their names.
func zones(t require.TestingT) (all map[string]*time.Location, names []string) {
	text, err := os.ReadFile("testdata/zones.txt")
	require.NoError(t, err)
	all = make(map[string]*time.Location)
	for name := range strings.FieldsSeq(string(text)) {
		all[name], err = time.LoadLocation(name)
		require.NoError(t, err)
		names = append(names, name)
	}
	require.Greater(t, len(names), 590)
	return all, names
}

func at(t require.TestingT, text string) time.Time {
	x, err := time.Parse(time.RFC3339, text)
	require.NoError(t, err, text)
	return x
}

func zone(t require.TestingT, name string) *time.Location {
	z, err := time.LoadLocation(name)
	require.NoError(t, err)
	return z
}

func splitRoute(route string) []string { return strings.Split(route, ">") }
