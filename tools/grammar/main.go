// Command grammar checks that SQL is MySQL's: every statement of the store (JSON on standard input, {"name": "sql"}) and every
// goose migration named as an argument is parsed by TiDB's MySQL parser. What that parser takes beyond MySQL, and what the
// project forbids because a server it supports would not take it, is refused here. A module of its own: its dependencies stay out
// of the product's.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/pingcap/tidb/pkg/parser"
	"github.com/pingcap/tidb/pkg/parser/ast"
	_ "github.com/pingcap/tidb/pkg/parser/test_driver" // values in the parsed tree
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout)) }

func run(migrations []string, in io.Reader, out io.Writer) int {
	c := checker{parser: parser.New()}
	var statements map[string]string
	if err := json.NewDecoder(in).Decode(&statements); err != nil {
		fmt.Fprintln(out, "reading the statements:", err)
		return 2
	}
	names := make([]string, 0, len(statements))
	for name := range statements {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c.check("statement "+name, statements[name])
	}
	for _, file := range migrations {
		content, err := os.ReadFile(file)
		if err != nil {
			fmt.Fprintln(out, err)
			return 2
		}
		for _, s := range splitMigration(string(content)) {
			c.check(fmt.Sprintf("%s:%d", file, s.line), s.sql)
		}
	}
	for _, f := range c.faults {
		fmt.Fprintln(out, f)
	}
	if len(names) == 0 || len(migrations) == 0 {
		fmt.Fprintln(out, "nothing to check: statements or migrations are missing")
		return 2
	}
	fmt.Fprintf(out, "grammar: %d statements and migrations are MySQL, %d are not\n", c.checked-len(c.faults), len(c.faults))
	if len(c.faults) > 0 {
		return 1
	}
	return 0
}

type checker struct {
	parser  *parser.Parser
	checked int
	faults  []string
}

// forbidden words, with what to do instead. Each is refused by one of the servers, or goes by the server's time zone.
var forbidden = []struct {
	pattern *regexp.Regexp
	why     string
}{
	{regexp.MustCompile(`(?i)\b(NOW|CURRENT_TIMESTAMP|CURDATE|CURTIME|CURRENT_DATE|CURRENT_TIME|LOCALTIME|LOCALTIMESTAMP|SYSDATE|UNIX_TIMESTAMP)\b`), "goes by the server's time zone: use UTC_TIMESTAMP(3)"},
	{regexp.MustCompile(`(?i)\bUTC_TIMESTAMP(\(\)|\s|$)`), "has no milliseconds: use UTC_TIMESTAMP(3)"},
	{regexp.MustCompile(`(?i)\bRETURNING\b`), "is not MySQL"},
	{regexp.MustCompile(`(?i)\bAS\s+new\b`), "is not MariaDB: use VALUES(column)"},
	{regexp.MustCompile(`(?i)utf8mb4_0900|utf8mb4_uca1400`), "only one of the servers has this collation"},
	{regexp.MustCompile(`(?i)\bOF\s+\w+\s+(SKIP|NOWAIT)`), "is not MariaDB: lock without OF"},
}

func (c *checker) check(name, sql string) {
	c.checked++
	if why := c.reason(sql); why != "" {
		c.faults = append(c.faults, name+": "+why)
	}
}

func (c *checker) reason(sql string) string {
	for _, f := range forbidden {
		if word := f.pattern.FindString(withoutText(sql)); word != "" {
			return strings.TrimSpace(word) + " " + f.why
		}
	}
	nodes, _, err := c.parser.ParseSQL(sql)
	switch {
	case err != nil:
		return err.Error()
	case len(nodes) != 1:
		return fmt.Sprintf("must be one statement, is %d", len(nodes))
	}
	return beyondMySQL(nodes[0])
}

// beyondMySQL names what TiDB and MariaDB take and MySQL does not.
func beyondMySQL(node ast.StmtNode) string {
	switch s := node.(type) {
	case *ast.CreateIndexStmt:
		if s.IfNotExists {
			return "CREATE INDEX IF NOT EXISTS is not MySQL"
		}
	case *ast.DropIndexStmt:
		if s.IfExists {
			return "DROP INDEX IF EXISTS is not MySQL"
		}
	case *ast.AlterTableStmt:
		for _, spec := range s.Specs {
			if spec.IfExists || spec.IfNotExists {
				return "IF [NOT] EXISTS within ALTER TABLE is not MySQL"
			}
		}
	case *ast.CreateSequenceStmt, *ast.DropSequenceStmt, *ast.AlterSequenceStmt:
		return "sequences are not MySQL"
	}
	return ""
}

var (
	quoted   = regexp.MustCompile(`'(?:[^'\\]|\\.|'')*'`)
	comments = regexp.MustCompile(`(?m)--[ \t].*$|#.*$|(?s:/\*.*?\*/)`)
)

// withoutText leaves out string literals and comments.
func withoutText(sql string) string {
	return comments.ReplaceAllString(quoted.ReplaceAllString(sql, "''"), "")
}
