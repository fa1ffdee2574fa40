package receive_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lapsehq/lapse/pkg/config"
)

// TestTheExamplesOfTheDocumentLoad: what docs/channels.md shows of a configuration is one.
func TestTheExamplesOfTheDocumentLoad(t *testing.T) {
	text, err := os.ReadFile("../../../docs/channels.md")
	require.NoError(t, err)
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	require.Len(t, examples, 2)
	for _, example := range examples {
		_, warnings, err := config.Load(config.DefaultNotifier(), config.Sources{
			File: "channels.md", YAML: example[1],
			Environ: []string{"LAPSE__INSTALLATION=test", "LAPSE__BROKER__URL=amqp://u:p@h/lapse", "LAPSE__DATABASE__PASSWORD=p"},
		})
		require.NoError(t, err)
		require.Empty(t, warnings)
	}
}
