package text_test

import (
	"testing"
	"time"
	_ "time/tzdata" // whatever the host has

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/lapsehq/lapse/pkg/notice/text"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func zone(t require.TestingT, name string) *time.Location {
	z, err := time.LoadLocation(name)
	require.NoError(t, err)
	return z
}

func at(t require.TestingT, value string) time.Time {
	x, err := time.Parse(time.RFC3339, value)
	require.NoError(t, err)
	return x
}

func newTexts(t require.TestingT) *text.Texts {
	texts, err := text.New("en")
	require.NoError(t, err)
	return texts
}
