//! The exported symbols, seen from programs: `dlsym` never changes a result, `cuInit` and the
//! runtime's functions reach what they would have reached without the library.
//!
//! Drivers and runtimes here are stand-ins of a few lines whose answers say who was reached. The
//! library is off (`GPUPOOL_MODE=off`): everything passes, which is what is tested.

#[path = "support/stage.rs"]
mod stage;
mod support;

use stage::Stage;
use support::library;

const DRIVER: &str = "\
int cuInit(unsigned flags) { return 42 + flags; }
int cuCtxGetCurrent(void **context) { return 3; }
";

#[test]
fn rtld_next_and_dlerror_stay_the_callers() {
    let stage = Stage::new("next");
    let link = "
        #include <dlfcn.h>
        #include <stdio.h>
        void *again(void) { return dlsym(RTLD_NEXT, \"malloc\"); }
        void forwarded(void) {
            printf(NAME \" \");
            void (*next)(void) = dlsym(RTLD_NEXT, \"forwarded\");
            if (next) next(); else printf(\"end: %s\\n\", dlerror());
        }";
    stage.object("libone.so", link, &["-DNAME=\"one\""]);
    stage.object("libtwo.so", link, &["-DNAME=\"two\""]);
    let program = stage.program(
        "
        #include <dlfcn.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <errno.h>
        void forwarded(void);
        int main(void) {
            forwarded();
            void *self = dlopen(NULL, RTLD_NOW);
            printf(\"%d %d\\n\", dlsym(self, \"main\") == NULL, dlsym(RTLD_DEFAULT, \"malloc\") == (void *)malloc);
            printf(\"%p\\n\", dlsym(self, \"no_such_name\"));
            printf(\"%s\\n\", dlerror());
            printf(\"%d\\n\", dlerror() == NULL);
            dlsym(self, \"no_such_name\");
            dlsym(self, \"malloc\");
            printf(\"%d\\n\", dlerror() == NULL);
            printf(\"%p\\n\", dlvsym(RTLD_DEFAULT, \"malloc\", \"GLIBC_9.9\"));
            printf(\"%s\\n\", dlerror());
            errno = 77;
            dlsym(RTLD_DEFAULT, \"malloc\");
            printf(\"%d\\n\", errno);
        }",
        &["-Wl,--no-as-needed", "-lone", "-ltwo"],
    );
    let outcome = stage.same(&program);
    assert!(
        outcome.stdout.starts_with("one two end: "),
        "{}",
        outcome.stdout
    );
    assert!(
        outcome.stdout.contains("undefined symbol: no_such_name"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn dlsym_works_before_constructors_and_inside_malloc() {
    let stage = Stage::new("early");
    // A preloaded malloc that finds the real one by dlsym, as profilers of the heap do. It comes
    // first, and is called before any constructor of the library has run.
    let heap = stage.object(
        "libheap.so",
        "
        #include <dlfcn.h>
        #include <stdio.h>
        #include <string.h>
        static char spare[1 << 16];
        static size_t used;
        static __thread int inside;
        static long calls;
        static void *(*real)(size_t);
        void *malloc(size_t size) {
            calls++;
            if (!real && !inside) {
                inside = 1;
                real = dlsym(RTLD_NEXT, \"malloc\");
                inside = 0;
            }
            if (real && !inside) return real(size);
            used = (used + 15) & ~15ul;
            used += size;
            return spare + used - size;
        }
        void free(void *block) {
            static void (*release)(void *);
            if ((char *)block >= spare && (char *)block < spare + sizeof spare) return;
            if (!release) release = dlsym(RTLD_NEXT, \"free\");
            release(block);
        }
        int counted(void) { return calls > 0; }",
        &[],
    );
    let program = stage.program(
        "
        #include <dlfcn.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        int main(void) {
            char *text = strdup(\"alive\");
            int (*counted)(void) = dlsym(RTLD_DEFAULT, \"counted\");
            printf(\"%s %d\\n\", text, counted());
            free(text);
        }",
        &[],
    );
    for order in [[heap.clone(), library()], [library(), heap.clone()]] {
        let preload = std::env::join_paths(&order).expect("no colon in a path");
        let outcome = stage
            .run(&program)
            .env("LD_PRELOAD", preload)
            .run()
            .expect_success();
        assert_eq!(
            (outcome.stdout.as_str(), outcome.stderr.as_str()),
            ("alive 1\n", ""),
            "{order:?}"
        );
    }
}

#[test]
fn cu_init_reaches_the_linked_driver() {
    let stage = Stage::new("linked");
    stage.object("libcuda.so.1", DRIVER, &[]);
    let program = stage.program(
        "#include <stdio.h>
        int cuInit(unsigned);
        int main(void) { printf(\"%d %d\\n\", cuInit(0), cuInit(7)); }",
        &["-l:libcuda.so.1"],
    );
    assert_eq!(stage.same(&program).stdout, "42 49\n");
}

#[test]
fn cu_init_reaches_a_driver_that_only_a_plugin_sees() {
    let stage = Stage::new("plugin");
    stage.object("libcuda.so.1", DRIVER, &[]);
    stage.object(
        "plugin.so",
        "int cuInit(unsigned); int go(void) { return cuInit(1); }",
        &["-l:libcuda.so.1"],
    );
    let program = stage.program(
        "#include <dlfcn.h>
        #include <stdio.h>
        int main(void) {
            for (int deep = 0; deep < 2; deep++) {
                void *plugin = dlopen(\"plugin.so\", RTLD_NOW | RTLD_LOCAL | (deep ? RTLD_DEEPBIND : 0));
                int (*go)(void) = dlsym(plugin, \"go\");
                printf(\"%d\\n\", go());
                dlclose(plugin);
            }
        }",
        &[],
    );
    assert_eq!(stage.same(&program).stdout, "43\n43\n");
}

#[test]
fn cu_init_passes_through_other_preloaded_libraries() {
    let stage = Stage::new("chain");
    stage.object("libcuda.so.1", DRIVER, &[]);
    let other = stage.object(
        "libother.so",
        "#include <dlfcn.h>
        int cuInit(unsigned flags) {
            int (*next)(unsigned) = dlsym(RTLD_NEXT, \"cuInit\");
            return 1000 + next(flags);
        }",
        &[],
    );
    let program = stage.program(
        "#include <stdio.h>
        int cuInit(unsigned);
        int main(void) { printf(\"%d\\n\", cuInit(0)); }",
        &["-l:libcuda.so.1"],
    );
    for order in [[library(), other.clone()], [other.clone(), library()]] {
        let preload = std::env::join_paths(&order).expect("no colon in a path");
        let outcome = stage
            .run(&program)
            .env("LD_PRELOAD", preload)
            .run()
            .expect_success();
        assert_eq!(outcome.stdout, "1042\n", "{order:?}");
    }
}

#[test]
fn cu_init_without_a_driver_says_no_device() {
    let stage = Stage::new("none");
    let program = stage.program(
        "#include <stdio.h>
        __attribute__((weak)) int cuInit(unsigned);
        int main(void) { printf(\"%d\\n\", cuInit ? cuInit(0) : -1); }",
        &[],
    );
    assert_eq!(
        stage
            .run(&program)
            .with_lib(false)
            .run()
            .expect_success()
            .stdout,
        "-1\n"
    );
    assert_eq!(
        stage
            .run(&program)
            .with_lib(true)
            .run()
            .expect_success()
            .stdout,
        "100\n"
    );
}

/// The hooks are put in at the first lookup after libcuda came, or not at all: here the driver is
/// already initialised then, so other threads may be inside it.
#[test]
fn a_driver_in_use_before_it_was_seen_is_left_alone() {
    let stage = Stage::new("late");
    stage.object(
        "libcuda.so.1",
        "int cuInit(unsigned flags) { return 0; }
        int cuCtxGetCurrent(void **context) { *context = 0; return 0; }",
        &[],
    );
    let program = stage.program(
        "#include <dlfcn.h>
        #include <stdio.h>
        int main(void) {
            void *driver = dlopen(\"libcuda.so.1\", RTLD_NOW | RTLD_LOCAL);
            for (int i = 0; i < 3; i++) {
                int (*init)(unsigned) = dlsym(driver, \"cuInit\");
                unsigned char *code = (void *)init;
                printf(\"%d %d\\n\", init(0), code[0] == 0xe9);
            }
        }",
        &[],
    );
    let outcome = stage
        .run(&program)
        .env_remove("GPUPOOL_MODE")
        .with_lib(true)
        .run()
        .expect_success();
    assert_eq!(outcome.stdout, "0 0\n0 0\n0 0\n");
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(
        lines.len() == 1 && lines[0].contains("in use before"),
        "{}",
        outcome.stderr
    );
}

/// Many threads look names up while libcuda arrives: every lookup gives the real answer, and all
/// threads get through.
#[test]
fn threads_that_look_names_up_while_the_driver_arrives() {
    let stage = Stage::new("threads");
    stage.object("libcuda.so.1", DRIVER, &[]);
    let program = stage.program(
        "#include <dlfcn.h>
        #include <pthread.h>
        #include <stdio.h>
        #include <stdlib.h>
        static volatile int stop;
        static void *look(void *unused) {
            long wrong = 0;
            while (!stop) wrong += dlsym(RTLD_DEFAULT, \"malloc\") != (void *)malloc;
            return (void *)wrong;
        }
        int main(void) {
            pthread_t threads[8];
            for (int i = 0; i < 8; i++) pthread_create(&threads[i], 0, look, 0);
            void *driver = dlopen(\"libcuda.so.1\", RTLD_NOW | RTLD_LOCAL);
            int (*init)(unsigned) = dlsym(driver, \"cuInit\");
            printf(\"%d\\n\", init(0));
            stop = 1;
            long wrong = 0;
            for (int i = 0; i < 8; i++) {
                void *result;
                pthread_join(threads[i], &result);
                wrong += (long)result;
            }
            printf(\"%ld wrong\\n\", wrong);
        }",
        &["-pthread"],
    );
    for _ in 0..20 {
        assert_eq!(stage.same(&program).stdout, "42\n0 wrong\n");
    }
}

/// Each stand-in runtime answers with its number, and checks that all arguments arrive.
const RUNTIME: &str = "
    #include <stddef.h>
    struct extent { size_t width, height, depth; };
    int cudaMalloc(void **out, size_t size) { *out = (void *)size; return ME; }
    int cudaFree(void *pointer) { return pointer == (void *)5 ? ME : -1; }
    int cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height) {
        *out = (void *)width; *pitch = height; return ME;
    }
    int cudaMalloc3D(size_t *out, struct extent extent) {
        out[0] = extent.width; out[1] = extent.height; out[2] = extent.depth; return ME;
    }
    int cudaRuntimeGetVersion(int *version) { *version = ME * 1000; return 0; }
";

/// Calls all four; the result is the runtime's number, or a negative one that says what went wrong.
const CALLER: &str = "
    #include <stddef.h>
    struct extent { size_t width, height, depth; };
    int cudaMalloc(void **, size_t);
    int cudaFree(void *);
    int cudaMallocPitch(void **, size_t *, size_t, size_t);
    int cudaMalloc3D(size_t *, struct extent);
    int go(void) {
        void *p = 0;
        size_t pitch = 0, three[3] = {0};
        int me = cudaMalloc(&p, 4711);
        if (p != (void *)4711) return -1;
        if (cudaFree((void *)5) != me) return -2;
        if (cudaMallocPitch(&p, &pitch, 11, 12) != me || p != (void *)11 || pitch != 12) return -3;
        struct extent extent = {21, 22, 23};
        if (cudaMalloc3D(three, extent) != me) return -4;
        if (three[0] != 21 || three[1] != 22 || three[2] != 23) return -5;
        return me;
    }
";

fn runtimes(stage: &Stage) {
    for version in ["12", "13"] {
        let script = stage.folder.path().join(format!("map{version}"));
        std::fs::write(
            &script,
            format!("libcudart.so.{version} {{ global: cuda*; local: *; }};"),
        )
        .expect("writable");
        let script = format!("-Wl,--version-script,{}", script.display());
        stage.object(
            &format!("libcudart.so.{version}"),
            RUNTIME,
            &[&format!("-DME={version}"), &script],
        );
        let runtime = format!("-l:libcudart.so.{version}");
        stage.object(&format!("plugin{version}.so"), CALLER, &[&runtime]);
    }
}

const HOST: &str = "
    #include <dlfcn.h>
    #include <stdio.h>
    int main(void) {
        const char *names[] = {\"plugin12.so\", \"plugin13.so\", \"plugin12.so\"};
        for (int i = 0; i < 3; i++) {
            void *plugin = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
            if (!plugin) { puts(dlerror()); return 1; }
            int (*go)(void) = dlsym(plugin, \"go\");
            printf(\"%d %d\\n\", go(), go());
        }
        return 0;
    }
";

#[test]
fn two_runtimes_in_one_process_each_serve_their_own() {
    let stage = Stage::new("runtimes");
    runtimes(&stage);
    let program = stage.program(HOST, &[]);
    assert_eq!(stage.same(&program).stdout, "12 12\n13 13\n12 12\n");
}

/// A plugin is closed, and another one with another runtime takes its place in memory: what was found
/// for calls from there is not what the new one would reach.
#[test]
fn a_plugin_in_the_place_of_a_closed_one_reaches_its_own_runtime() {
    let stage = Stage::new("reopened");
    runtimes(&stage);
    let host = "
        #include <dlfcn.h>
        #include <stdio.h>
        int main(void) {
            void *places[6];
            int same = 0;
            for (int i = 0; i < 6; i++) {
                void *plugin = dlopen(i % 2 ? \"plugin13.so\" : \"plugin12.so\", RTLD_NOW | RTLD_LOCAL);
                if (!plugin) { puts(dlerror()); return 1; }
                int (*go)(void) = dlsym(plugin, \"go\");
                for (int j = 0; j < i; j++) same += places[j] == (void *)go;
                places[i] = (void *)go;
                printf(\"%d %d\\n\", go(), go());
                dlclose(plugin);
            }
            fprintf(stderr, \"%s\\n\", same ? \"places came again\" : \"no place came again\");
            return 0;
        }
    ";
    let program = stage.program(host, &[]);
    let run = |with| stage.run(&program).with_lib(with).run().expect_success();
    assert_eq!(run(false).stdout, run(true).stdout);
    assert_eq!(run(true).stdout, "12 12\n13 13\n".repeat(3));
    assert_eq!(run(true).stderr, "places came again\n");
}

#[test]
fn a_runtime_linked_to_the_program_does_not_hide_a_plugins_own() {
    let stage = Stage::new("global");
    runtimes(&stage);
    let source = format!(
        "{}\n{}",
        CALLER,
        HOST.replace(
            "return 0;",
            "printf(\"program %d\\n\", program()); return 0;"
        )
        .replace(
            "int main",
            "int go(void);\nstatic int program(void) { return go(); }\nint main"
        )
    )
    // The plugin's `go` is a local variable there; the program's own keeps another name.
    .replace("int (*go)(void)", "int (*plugin_go)(void)")
    .replace("go(), go()", "plugin_go(), plugin_go()");
    let program = stage.program(&source, &["-l:libcudart.so.13"]);
    assert_eq!(
        stage.same(&program).stdout,
        "12 12\n13 13\n12 12\nprogram 13\n"
    );
}

#[test]
fn another_preloaded_library_keeps_its_turn_before_the_runtime() {
    let stage = Stage::new("interposer");
    runtimes(&stage);
    let other = stage.object(
        "libother.so",
        "#include <dlfcn.h>
        #include <stddef.h>
        int cudaMalloc(void **out, size_t size) {
            int (*next)(void **, size_t) = dlsym(RTLD_NEXT, \"cudaMalloc\");
            return 100 + next(out, size);
        }",
        &[],
    );
    let program = stage.program(
        "#include <stdio.h>
        #include <stddef.h>
        int cudaMalloc(void **, size_t);
        int main(void) { void *p; printf(\"%d\\n\", cudaMalloc(&p, 1)); }",
        &["-l:libcudart.so.13"],
    );
    for order in [[library(), other.clone()], [other.clone(), library()]] {
        let preload = std::env::join_paths(&order).expect("no colon in a path");
        let outcome = stage
            .run(&program)
            .env("LD_PRELOAD", preload)
            .run()
            .expect_success();
        assert_eq!(outcome.stdout, "113\n", "{order:?}");
    }
}
