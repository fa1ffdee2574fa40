// Command statements prints every SQL statement of the store as JSON ({"name": "sql", …}), for checks that live outside this
// module: go run ./scripts/statements
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/lapsehq/lapse/pkg/store"
)

func main() { os.Exit(run()) }

func run() int {
	statements := map[string]string{}
	for _, s := range store.Statements() {
		if _, twice := statements[s.Name]; twice {
			fmt.Fprintf(os.Stderr, "two statements are named %s\n", s.Name)

			return 1
		}
		statements[s.Name] = s.SQL
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(statements); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	return 0
}
