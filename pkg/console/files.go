package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"time"
)

//go:embed static
var static embed.FS

// types of the files: the system's own table may know others.
func types() map[string]string {
	return map[string]string{
		".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
		".svg": "image/svg+xml", "": "text/plain; charset=utf-8", ".md": "text/plain; charset=utf-8",
	}
}

// files serves what is embedded, each file under its own name, and the page under none.
func (c *Console) files() error {
	err := fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := static.ReadFile(name)
		if err != nil {
			return err //nolint:wrapcheck // names the file
		}
		kind, ok := types()[path.Ext(name)]
		if !ok {
			return fmt.Errorf("%s: it is not known what it is", name)
		}
		sum := sha256.Sum256(body)
		tag := `"` + hex.EncodeToString(sum[:8]) + `"`
		at := Path + name[len("static/"):]
		if name == "static/index.html" {
			at = Path + "{$}"
		}
		c.mux.HandleFunc("GET "+at, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("ETag", tag)
			w.Header().Set("Cache-Control", "no-cache") // another release has others under the same name
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
		})
		return nil
	})
	if err != nil {
		return fmt.Errorf("the console's files: %w", err)
	}
	return nil
}
