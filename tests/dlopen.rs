//! The exported `dlopen` only looks at a flag: who called it, what is found and what an error says stay
//! as without the library.
//!
//! Libraries are stand-ins of a few lines, and the library is off, as in tests/exports.rs.

#[path = "support/stage.rs"]
mod stage;
mod support;

use stage::Stage;
use support::library;

// covers: no-harm
/// `$ORIGIN` in the caller's own search path, and a library that only the caller can find.
#[test]
fn the_callers_search_path_counts() {
    let stage = Stage::new("dlopen-origin");
    let inner = stage.folder.path().join("inner");
    std::fs::create_dir(&inner).expect("a folder");
    let hidden = stage.object("libhidden.so", "int answer(void) { return 17; }", &[]);
    std::fs::rename(hidden, inner.join("libhidden.so")).expect("moved");
    let outer = "
        #include <dlfcn.h>
        int ask(int flags) {
            void *found = dlopen(\"libhidden.so\", flags);
            if (!found) return -1;
            int (*answer)(void) = dlsym(found, \"answer\");
            int result = answer();
            dlclose(found);
            return result;
        }";
    stage.object("libouter.so", outer, &["-Wl,-rpath,$ORIGIN/inner"]);
    let program = stage.program(
        "
        #include <dlfcn.h>
        #include <stdio.h>
        #include <errno.h>
        int ask(int flags);
        int main(void) {
            printf(\"%p\\n\", dlopen(\"libhidden.so\", RTLD_NOW));
            printf(\"%s\\n\", dlerror());
            printf(\"%p\\n\", dlopen(\"libhidden.so\", RTLD_NOW | RTLD_DEEPBIND));
            printf(\"%d\\n\", ask(RTLD_NOW));
            printf(\"%d\\n\", ask(RTLD_LAZY | RTLD_DEEPBIND));
            printf(\"%p\\n\", dlopen(\"libhidden.so\", 0));
            printf(\"%s\\n\", dlerror());
            printf(\"%d\\n\", dlopen(NULL, RTLD_NOW) == dlopen(NULL, RTLD_NOW | RTLD_DEEPBIND));
            printf(\"%d\\n\", dlerror() == NULL);
            printf(\"%d\\n\", dlopen(\"libouter.so\", RTLD_NOW | RTLD_NOLOAD) != NULL);
        }",
        &["-Wl,--no-as-needed", "-louter"],
    );
    let outcome = stage.same(&program);
    assert!(outcome.stdout.contains("\n17\n17\n"), "{outcome:#?}");
}

/// Another preloaded library that watches `dlopen` has its turn, before and behind this one.
#[test]
fn others_that_watch_dlopen_have_their_turn() {
    let stage = Stage::new("dlopen-watched");
    let watcher = stage.object(
        "libwatcher.so",
        "
        #include <dlfcn.h>
        #include <stdio.h>
        void *dlopen(const char *file, int flags) {
            void *(*next)(const char *, int) = dlsym(RTLD_NEXT, \"dlopen\");
            printf(\"watched %s\\n\", file);
            return next(file, flags);
        }",
        &[],
    );
    let program = stage.program(
        "
        #include <dlfcn.h>
        #include <stdio.h>
        int main(void) {
            void *m = dlopen(\"libm.so.6\", RTLD_NOW | RTLD_DEEPBIND);
            double (*root)(double) = dlsym(m, \"sqrt\");
            printf(\"%g\\n\", root(16));
        }",
        &[],
    );
    for order in [[watcher.clone(), library()], [library(), watcher.clone()]] {
        let preload = std::env::join_paths(&order).expect("no colon in a path");
        let outcome = stage
            .run(&program)
            .env("LD_PRELOAD", preload)
            .run()
            .expect_success();
        assert_eq!(
            (outcome.stdout.as_str(), outcome.stderr.as_str()),
            ("watched libm.so.6\n4\n", ""),
            "{order:?}"
        );
    }
}

/// A plugin that is bound past the library by RTLD_DEEPBIND still gets every answer of the real
/// `dlsym`, whoever asks, also where its table of addresses is read-only; and one without the flag
/// finds a `dlsym` of its own dependencies' first, as natively.
// covers: entry-points
#[test]
fn a_redirected_plugin_gets_the_real_answers() {
    let stage = Stage::new("dlopen-answers");
    let plugin = "
        #include <dlfcn.h>
        void *(*const in_data)(void *, const char *) = dlsym;
        void *next_malloc(void) { return dlsym(RTLD_NEXT, \"malloc\"); }
        void *any_malloc(void) { return in_data(RTLD_DEFAULT, \"malloc\"); }
        void *missing(void) { return dlsym(RTLD_DEFAULT, \"no_such_name\"); }
        int own(void) { return 5; }
        int called(void) { int (*f)(void) = dlsym(RTLD_DEFAULT, \"own\"); return f ? f() : -1; }";
    stage.object("libplain.so", plugin, &["-Wl,-z,lazy,-z,norelro"]);
    stage.object("libnow.so", plugin, &["-Wl,-z,now,-z,relro"]);
    stage.object("libnoplt.so", plugin, &["-fno-plt", "-Wl,-z,now,-z,relro"]);
    stage.object("libsysv.so", plugin, &["-Wl,--hash-style=sysv"]);
    let program = stage.program(
        "
        #include <dlfcn.h>
        #include <stdio.h>
        #include <stdlib.h>
        int main(void) {
            const char *names[] = {\"libplain.so\", \"libnow.so\", \"libnoplt.so\", \"libsysv.so\"};
            for (int i = 0; i < 4; i++)
                for (int flags = 0; flags < 2; flags++) {
                    void *p = dlopen(names[i], (flags ? RTLD_NOW : RTLD_LAZY) | RTLD_LOCAL | RTLD_DEEPBIND);
                    void *(*next)(void) = dlsym(p, \"next_malloc\"), *(*any)(void) = dlsym(p, \"any_malloc\");
                    void *(*missing)(void) = dlsym(p, \"missing\");
                    int (*called)(void) = dlsym(p, \"called\");
                    printf(\"%s %d %d \", names[i], next() == (void *)malloc, any() == (void *)malloc);
                    printf(\"%p \", missing());
                    printf(\"%s \", dlerror());
                    printf(\"%d\\n\", called());
                    dlclose(p);
                }
        }",
        &[],
    );
    let outcome = stage.same(&program);
    assert_eq!(outcome.stdout.lines().count(), 8, "{outcome:#?}");
    assert!(outcome.stdout.lines().all(|line| line.contains(" 1 1 ")));
}
