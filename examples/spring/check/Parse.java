import com.sun.source.util.JavacTask;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.stream.Stream;
import javax.tools.Diagnostic;
import javax.tools.DiagnosticCollector;
import javax.tools.JavaFileObject;
import javax.tools.StandardJavaFileManager;
import javax.tools.ToolProvider;

/** Parses every Java source below a folder with javac's own parser, without its libraries: {@code java Parse.java src}. */
class Parse {
  public static void main(String[] args) throws Exception {
    List<Path> files;
    try (Stream<Path> all = Files.walk(Path.of(args[0]))) {
      files = all.filter(p -> p.toString().endsWith(".java")).sorted().toList();
    }
    var compiler = ToolProvider.getSystemJavaCompiler();
    var told = new DiagnosticCollector<JavaFileObject>();
    int classes = 0;
    try (StandardJavaFileManager manager = compiler.getStandardFileManager(told, Locale.ROOT, null)) {
      var task = (JavacTask) compiler.getTask(null, manager, told, null, null, manager.getJavaFileObjectsFromPaths(files));
      for (var unit : task.parse()) {
        classes += unit.getTypeDecls().size();
      }
    }
    boolean wrong = false;
    for (Diagnostic<?> d : told.getDiagnostics()) {
      System.err.println(d);
      wrong |= d.getKind() == Diagnostic.Kind.ERROR;
    }
    if (wrong || classes == 0) {
      System.exit(1);
    }
    System.out.println(classes + " classes parsed");
  }
}
