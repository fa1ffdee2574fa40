package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
)

// WritePorts writes the ports that a process listens on to path as a JSON object ({"admin":9101}), whole or not at all, so
// that a reader that waits for the file never sees half of it.
func WritePorts(path string, ports map[string]int) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing the ports file: %w", err)
		}
	}()
	body, err := json.Marshal(ports)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(body, '\n'))
	if err == nil {
		err = f.Chmod(0o644)
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}

	return nil
}

// ReadPorts reads what WritePorts wrote.
func ReadPorts(path string) (map[string]int, error) {
	body, err := os.ReadFile(path) //nolint:gosec // the operator names the file
	if err != nil {
		return nil, fmt.Errorf("reading the ports file: %w", err)
	}
	var ports map[string]int
	if err := json.Unmarshal(body, &ports); err != nil {
		return nil, fmt.Errorf("reading the ports file %s: %w", path, err)
	}

	return ports, nil
}

// CheckLive asks the /livez of the admin server that listens on this machine at address ("host:port"; an empty or unspecified
// host means loopback). portsFile, if not empty, gives the port when the address says 0. ctx must bound it.
func CheckLive(ctx context.Context, address, portsFile string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("asking /livez: %w", err)
	}
	if port == "0" {
		if portsFile == "" {
			return errors.New("asking /livez: the admin port is chosen at start; name the -ports-file it was written to")
		}
		ports, err := ReadPorts(portsFile)
		if err != nil {
			return fmt.Errorf("asking /livez: %w", err)
		}
		port = strconv.Itoa(ports["admin"])
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/livez", nil)
	if err != nil {
		return fmt.Errorf("asking /livez: %w", err)
	}
	// A transport of its own: no proxy from the environment, no idle connection left behind.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("asking /livez: %w", err)
	}
	defer res.Body.Close() //nolint:errcheck // read only
	if _, err := io.Copy(io.Discard, io.LimitReader(res.Body, 1<<16)); err != nil {
		return fmt.Errorf("asking /livez: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("asking /livez: answered %s", res.Status)
	}

	return nil
}
