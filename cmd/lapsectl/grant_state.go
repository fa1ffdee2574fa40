package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// grantState is how far a file has been sent. It lies beside the file until all of it has been.
type grantState struct {
	Version  int    `json:"version"`
	SHA256   string `json:"sha256"`  // of the file
	Options  string `json:"options"` // what else decides over keys and contents
	Run      string `json:"run"`     // begins the ids of its messages
	Rows     int64  `json:"rows"`    // dealt with: their grants confirmed, their faults written
	Sent     int64  `json:"sent"`
	Rejected int64  `json:"rejected"`
	Events   int64  `json:"events"`
	Rejects  int64  `json:"rejects_bytes"` // of the rejects file that belong to Rows
}

const (
	stateVersion = 1
	stateSuffix  = ".lapse-resume.json"
)

// fileFacts are what a first pass over a file tells.
type fileFacts struct {
	sha256 string
	lines  int64
}

func inspect(f io.ReadSeeker) (fileFacts, error) {
	sum := sha256.New()
	buf := make([]byte, 1<<20)
	var facts fileFacts
	last := byte('\n')
	for {
		n, err := f.Read(buf)
		if n > 0 {
			_, _ = sum.Write(buf[:n])
			facts.lines += int64(bytes.Count(buf[:n], []byte("\n")))
			last = buf[n-1]
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return facts, err //nolint:wrapcheck // names the file
		}
	}
	if last != '\n' {
		facts.lines++
	}
	facts.sha256 = hex.EncodeToString(sum.Sum(nil))
	_, err := f.Seek(0, io.SeekStart)
	return facts, err //nolint:wrapcheck // names the file
}

// readState reads what an earlier run left; false if it left nothing.
func readState(file string) (st grantState, found bool, err error) {
	body, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return st, false, nil
	}
	if err == nil {
		err = json.Unmarshal(body, &st)
	}
	if err == nil && (st.Version != stateVersion || st.Rows < 0 || st.Rejects < 0 || st.Run == "") {
		err = fmt.Errorf("version: must be %d, got %d", stateVersion, st.Version)
	}
	if err != nil {
		return st, false, fmt.Errorf("reading %s, which says how far an earlier run came: %w; without --resume it is not needed", file, err)
	}
	return st, true, nil
}

// fits says why the state cannot be gone on with.
func (st grantState) fits(name string, facts fileFacts, options string) error {
	switch {
	case st.SHA256 != facts.sha256:
		return fmt.Errorf("--resume: %s has changed since (sha256 %.12s… then, %.12s… now); begin again without --resume: rows whose keys were granted are not granted again",
			name, st.SHA256, facts.sha256)
	case st.Options != options:
		return fmt.Errorf("--resume: the earlier run was started as %s, this one as %s; give the same, or begin again without --resume", st.Options, options)
	default:
		return nil
	}
}

// write replaces the file at once or not at all.
func (st grantState) write(file string) error {
	body, err := json.MarshalIndent(st, "", "  ")
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return fmt.Errorf("noting how far it came: %w", err)
	}
	_, err = tmp.Write(append(body, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), file)
	}
	if err != nil {
		return fmt.Errorf("noting how far it came: %w", errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}

// rejects is the file of rejected rows; a nil file counts alone.
type rejects struct {
	file *os.File
	size int64
}

// openRejects makes the file, or goes on with what belongs to the first keep bytes.
func openRejects(name string, keep int64) (*rejects, error) {
	if name == "" {
		return &rejects{}, nil
	}
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("--rejects: %w", err)
	}
	if info, serr := f.Stat(); serr == nil && info.Mode().IsRegular() {
		if info.Size() < keep {
			return nil, errors.Join(fmt.Errorf("--rejects: %s is not the file of the earlier run, or was cut: %d bytes, at least %d expected", name, info.Size(), keep), f.Close())
		}
		err = f.Truncate(keep)
		if err == nil {
			_, err = f.Seek(keep, io.SeekStart)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("--rejects: %w", err), f.Close())
	}
	return &rejects{file: f, size: keep}, nil
}

// add writes the faults of a row.
func (r *rejects) add(faults []fault) error {
	if r.file == nil {
		return nil
	}
	var lines []byte
	for _, f := range faults {
		line, err := json.Marshal(f)
		if err != nil {
			return fmt.Errorf("--rejects: %w", err)
		}
		lines = append(append(lines, line...), '\n')
	}
	n, err := r.file.Write(lines)
	r.size += int64(n)
	if err != nil {
		return fmt.Errorf("--rejects: %w", err)
	}
	return nil
}

func (r *rejects) close() error {
	if r.file == nil {
		return nil
	}
	if err := r.file.Close(); err != nil {
		return fmt.Errorf("--rejects: %w", err)
	}
	return nil
}
