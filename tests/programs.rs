//! The C programs of `tests/programs` on the simulated driver, each without and with the library:
//! the output has to be the same. `tests/programs/table.txt` lists the runs; the same table is run on
//! a real GPU by `scripts/gpu-check`.

#[path = "programs/stats.rs"]
mod stats;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use stats::{number, statistics};
use support::{Folder, Run, program, root, run_program};

/// A line of the table.
struct Row {
    id: String,
    program: String,
    arguments: Vec<String>,
    flavours: Vec<String>,
    simulated: Vec<(String, String)>,
    pool: Vec<(String, String)>,
    rules: Vec<String>,
}

impl Row {
    fn has(&self, rule: &str) -> bool {
        self.rules.iter().any(|r| r == rule)
    }

    /// The texts of all rules of a kind, `_` standing for a space.
    fn texts(&self, kind: &str) -> Vec<String> {
        self.rules
            .iter()
            .filter_map(|r| r.strip_prefix(kind))
            .map(|t| t.replace('_', " "))
            .collect()
    }
}

fn words(column: &str) -> Vec<String> {
    column.split_whitespace().map(str::to_owned).collect()
}

fn variables(column: &str) -> Vec<(String, String)> {
    words(column)
        .iter()
        .filter_map(|v| v.split_once('='))
        .map(|(n, v)| (n.to_owned(), v.to_owned()))
        .collect()
}

fn table() -> Vec<Row> {
    let text = include_str!("programs/table.txt");
    let lines = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let columns: Vec<&str> = line.split('|').map(str::trim).collect();
            assert_eq!(columns.len(), 7, "seven columns: {line}");
            let mut command = words(columns[1]);
            Row {
                id: columns[0].to_owned(),
                program: command.remove(0),
                arguments: command,
                flavours: words(columns[2]),
                simulated: variables(columns[3]),
                pool: variables(columns[4]),
                rules: words(columns[5]),
            }
        })
        .collect()
}

/// A `maybe-better` line: word by word equal, or 0 with the library.
fn no_worse(native: &str, pooled: &str) -> bool {
    let (a, b): (Vec<&str>, Vec<&str>) = (native.split(' ').collect(), pooled.split(' ').collect());
    let better = |x: &str, y: &str| y == "0" && x.chars().all(|c| c.is_ascii_digit());
    a.len() == b.len() && a.iter().zip(&b).all(|(x, y)| x == y || better(x, y))
}

#[track_caller]
fn compare(native: &str, pooled: &str, left_out: &[String]) {
    let keep = |text: &str| -> Vec<String> {
        text.lines()
            .filter(|l| !left_out.iter().any(|t| l.contains(t.as_str())))
            .map(str::to_owned)
            .collect()
    };
    let (a, b) = (keep(native), keep(pooled));
    for (x, y) in a.iter().zip(&b) {
        let fine = x == y || (x.starts_with("maybe-better") && no_worse(x, y));
        assert!(fine, "without the library `{x}`, with it `{y}`");
    }
    assert_eq!(
        a.len(),
        b.len(),
        "number of lines\n{native}\n-- with the library:\n{pooled}"
    );
}

fn prepared(name: &str, flavour: &str, arguments: &[String], env: &[(String, String)]) -> Run {
    let mut run = run_program(name, flavour)
        .args(arguments)
        .limit(Duration::from_secs(90));
    for (name, value) in env {
        run = run.env(name, value);
    }
    run
}

/// Whether a line on stderr is none of the library's doing. Everything else there is a failure: the
/// simulated driver's reports of violations, and what the library logs.
fn expected_on_stderr(row: &Row, line: &str) -> bool {
    let own_faults = ["VIOLATION double-free", "VIOLATION forked-child"];
    row.has("bad-calls") && own_faults.iter().any(|fault| line.contains(fault))
}

/// One run of the table in one flavour.
fn check(id: &str, flavour: &str) {
    let rows = table();
    let row = rows
        .iter()
        .find(|row| row.id == id)
        .unwrap_or_else(|| panic!("{id} is not in the table"));
    let native = (!row.has("pooled-only")).then(|| {
        prepared(&row.program, flavour, &row.arguments, &row.simulated)
            .run()
            .expect_success()
    });

    let folder = Folder::new(&format!("{id}-{flavour}"));
    let mut run = prepared(&row.program, flavour, &row.arguments, &row.simulated).with_lib(true);
    run = run.env("GPUPOOL_STATS", folder.path().join("stats.json"));
    for (name, value) in &row.pool {
        run = run.env(name, value);
    }
    let pooled = run.run().expect_success();

    if let Some(native) = &native {
        compare(&native.stdout, &pooled.stdout, &row.texts("except="));
    }
    let faults: Vec<&str> = pooled
        .stderr
        .lines()
        .filter(|line| !expected_on_stderr(row, line))
        .collect();
    assert!(faults.is_empty(), "on stderr: {faults:#?}");
    for text in row.texts("expect=") {
        assert!(
            pooled.stdout.lines().any(|l| l.contains(&text)),
            "no line with `{text}`: {pooled:#?}"
        );
    }
    if row.has("hits") {
        assert!(
            number(&statistics(&folder), "/hits") > 0,
            "nothing was pooled: {}",
            statistics(&folder)
        );
    }
}

macro_rules! programs {
    ($($name:ident: $id:literal $flavour:literal;)*) => {
        $(#[test] fn $name() { check($id, $flavour); })*
        const COVERED: &[(&str, &str)] = &[$(($id, $flavour)),*];
    };
}

programs! {
    fiber_shared: "fiber" "shared";
    fiber_static: "fiber" "static";
    cross_stream_shared: "cross_stream" "shared";
    cross_stream_static: "cross_stream" "static";
    free_then_copy_shared: "free_then_copy" "shared";
    free_copy_ordered_shared: "free_copy_ordered" "shared";
    free_copy_ordered_static: "free_copy_ordered" "static";
    free_copy_strict_shared: "free_copy_strict" "shared";
    free_copy_strict_static: "free_copy_strict" "static";
    free_cpu_strict_shared: "free_cpu_strict" "shared";
    endless_kernel_shared: "endless_kernel" "shared";
    endless_kernel_static: "endless_kernel" "static";
    endless_strict_shared: "endless_strict" "shared";
    gated_kernel_shared: "gated_kernel" "shared";
    gated_kernel_static: "gated_kernel" "static";
    gated_limit_small_shared: "gated_limit_small" "shared";
    gated_limit_zero_shared: "gated_limit_zero" "shared";
    gated_ordered_shared: "gated_ordered" "shared";
    gated_wait_zero_shared: "gated_wait_zero" "shared";
    pinned_shared: "pinned" "shared";
    pinned_static: "pinned" "static";
    pinned_off_shared: "pinned_off" "shared";
    pinned_ordered_shared: "pinned_ordered" "shared";
    pinned_strict_shared: "pinned_strict" "shared";
    pinned_answers_shared: "pinned_answers" "shared";
    pinned_answers_static: "pinned_answers" "static";
    pinned_answers_cap_shared: "pinned_answers_cap" "shared";
    pinned_pages_shared: "pinned_pages" "shared";
    pinned_zero_shared: "pinned_zero" "shared";
    pinned_ends_shared: "pinned_ends" "shared";
    pinned_ends_static: "pinned_ends" "static";
    pinned_fault_shared: "pinned_fault" "shared";
    pinned_numa_shared: "pinned_numa" "shared";
    pinned_stress_shared: "pinned_stress" "shared";
    pinned_stress_static: "pinned_stress" "static";
    pinned_stress_strict_shared: "pinned_stress_strict" "shared";
    pinned_stress_idle_shared: "pinned_stress_idle" "shared";
    fill_any_shared: "fill_any" "shared";
    fill_zero_shared: "fill_zero" "shared";
    fill_zero_static: "fill_zero" "static";
    fill_poison_shared: "fill_poison" "shared";
    alignment_shared: "alignment" "shared";
    alignment_static: "alignment" "static";
    alignment_pool_shared: "alignment_pool" "shared";
    alignment_pool_static: "alignment_pool" "static";
    bad_frees_shared: "bad_frees" "shared";
    bad_frees_static: "bad_frees" "static";
    bad_frees_strict_shared: "bad_frees_strict" "shared";
    capture_shared: "capture" "shared";
    capture_static: "capture" "static";
    capture_ordered_shared: "capture_ordered" "shared";
    capture_strict_shared: "capture_strict" "shared";
    first_in_capture_shared: "first_in_capture" "shared";
    first_in_capture_static: "first_in_capture" "static";
    memgetinfo_shared: "memgetinfo" "shared";
    memgetinfo_static: "memgetinfo" "static";
    memgetinfo_limit_shared: "memgetinfo_limit" "shared";
    memgetinfo_cap_shared: "memgetinfo_cap" "shared";
    peer_shared: "peer" "shared";
    peer_static: "peer" "static";
    peer_grace_shared: "peer_grace" "shared";
    crosses_shared: "crosses" "shared";
    crosses_static: "crosses" "static";
    ipc_shared: "ipc" "shared";
    ipc_static: "ipc" "static";
    exported_sync_shared: "exported_sync" "shared";
    ranges_prealloc_shared: "ranges_prealloc" "shared";
    ranges_shared: "ranges" "shared";
    ranges_static: "ranges" "static";
    block_calls_shared: "block_calls" "shared";
    block_calls_static: "block_calls" "static";
    pitched_shared: "pitched" "shared";
    pitched_static: "pitched" "static";
    contexts_driver: "contexts" "driver";
    reset_shared: "reset" "shared";
    reset_static: "reset" "static";
    exit_return_shared: "exit_return" "shared";
    exit_return_static: "exit_return" "static";
    exit_atexit_shared: "exit_atexit" "shared";
    exit_atexit_static: "exit_atexit" "static";
    exit_destructor_shared: "exit_destructor" "shared";
    exit_destructor_static: "exit_destructor" "static";
    exit_thread_shared: "exit_thread" "shared";
    exit_thread_static: "exit_thread" "static";
    exit_quick_shared: "exit_quick" "shared";
    exit_busy_shared: "exit_busy" "shared";
    exit_detached_shared: "exit_detached" "shared";
    exit_detached_static: "exit_detached" "static";
    exit_underscore_shared: "exit_underscore" "shared";
    fork_shared: "fork" "shared";
    fork_static: "fork" "static";
    fork_storm_shared: "fork_storm" "shared";
    fork_child_frees_shared: "fork_child_frees" "shared";
    fault_shared: "fault" "shared";
    fault_static: "fault" "static";
    out_of_memory_shared: "out_of_memory" "shared";
    out_of_memory_static: "out_of_memory" "static";
    overlap_shared: "overlap" "shared";
    overlap_frees_shared: "overlap_frees" "shared";
    overlap_frees_static: "overlap_frees" "static";
    churn_shared: "churn" "shared";
    churn_static: "churn" "static";
    churn_cap_shared: "churn_cap" "shared";
    churn_prealloc_shared: "churn_prealloc" "shared";
    churn_off_shared: "churn_off" "shared";
    churn_observe_shared: "churn_observe" "shared";
    churn_observe_static: "churn_observe" "static";
    churn_idle_shared: "churn_idle" "shared";
    churn_idle_static: "churn_idle" "static";
    capture_idle_shared: "capture_idle" "shared";
    capture_idle_static: "capture_idle" "static";
    fork_storm_idle_shared: "fork_storm_idle" "shared";
    exit_return_idle_shared: "exit_return_idle" "shared";
    exit_return_idle_static: "exit_return_idle" "static";
    exit_busy_idle_shared: "exit_busy_idle" "shared";
    random_calls_shared: "random_calls" "shared";
    random_calls_static: "random_calls" "static";
    checkpoint_shared: "checkpoint" "shared";
    checkpoint_static: "checkpoint" "static";
    driver_only_driver: "driver_only" "driver";
    dlsym_driver_driver: "dlsym_driver" "driver";
    plugin_driver: "plugin" "driver";
    deepbind_driver: "deepbind" "driver";
    deepbind_now_driver: "deepbind_now" "driver";
    deepbind_threads_driver: "deepbind_threads" "driver";
    namespace_driver: "namespace" "driver";
    descriptors_driver: "descriptors" "driver";
    descriptors_exec_driver: "descriptors_exec" "driver";
    foreign_shared: "foreign" "shared";
    green_context_driver: "green_context" "driver";
    short_threads_shared: "short_threads" "shared";
    short_threads_static: "short_threads" "static";
    forwarding_shared: "forwarding" "shared";
    capture_forms_shared: "capture_forms" "shared";
    capture_forms_static: "capture_forms" "static";
    capture_context_shared: "capture_context" "shared";
    given_back_shared: "given_back" "shared";
    given_back_static: "given_back" "static";
    given_back_busy_shared: "given_back_busy" "shared";
    stack_limit_shared: "stack_limit" "shared";
    stack_limit_static: "stack_limit" "static";
    ipc_isolate_shared: "ipc_isolate" "shared";
    ipc_isolate_static: "ipc_isolate" "static";
    ipc_deny_shared: "ipc_deny" "shared";
    ipc_large_shared: "ipc_large" "shared";
    exported_shared: "exported" "shared";
    exported_static: "exported" "static";
    exported_dmabuf_shared: "exported_dmabuf" "shared";
    exported_token_shared: "exported_token" "shared";
    context_forms_driver: "context_forms" "driver";
    ending_contexts_driver: "ending_contexts" "driver";
    exit_pthread_shared: "exit_pthread" "shared";
    exit_pthread_static: "exit_pthread" "static";
    exit_in_thread_shared: "exit_in_thread" "shared";
    exit_in_thread_static: "exit_in_thread" "static";
    exit_codes_shared: "exit_codes" "shared";
    thread_local_shared: "thread_local" "shared";
    thread_local_static: "thread_local" "static";
    thread_local_main_shared: "thread_local_main" "shared";
    thread_local_main_static: "thread_local_main" "static";
    thread_local_static_shared: "thread_local_static" "shared";
    thread_local_static_static: "thread_local_static" "static";
    thread_local_detached_shared: "thread_local_detached" "shared";
    thread_local_detached_static: "thread_local_detached" "static";
    rust_threads_shared: "rust_threads" "shared";
    rust_main_shared: "rust_main" "shared";
    rust_exit_in_thread_shared: "rust_exit_in_thread" "shared";
    exec_shared: "exec" "shared";
    exec_static: "exec" "static";
    unload_plugin_driver: "unload_plugin" "driver";
    unload_runtime_driver: "unload_runtime" "driver";
    unload_exit_driver: "unload_exit" "driver";
    init_often_driver: "init_often" "driver";
    traced_shared: "traced" "shared";
    traced_static: "traced" "static";
    traced_quick_shared: "traced_quick" "shared";
    vmm_cross_stream_shared: "vmm_cross_stream" "shared";
    vmm_cross_stream_static: "vmm_cross_stream" "static";
    vmm_alignment_shared: "vmm_alignment" "shared";
    vmm_alignment_pool_shared: "vmm_alignment_pool" "shared";
    vmm_bad_frees_shared: "vmm_bad_frees" "shared";
    vmm_capture_shared: "vmm_capture" "shared";
    vmm_memgetinfo_shared: "vmm_memgetinfo" "shared";
    vmm_memgetinfo_cap_shared: "vmm_memgetinfo_cap" "shared";
    vmm_given_back_shared: "vmm_given_back" "shared";
    vmm_peer_shared: "vmm_peer" "shared";
    vmm_peer_static: "vmm_peer" "static";
    vmm_peer_grace_shared: "vmm_peer_grace" "shared";
    vmm_ipc_shared: "vmm_ipc" "shared";
    vmm_dmabuf_shared: "vmm_dmabuf" "shared";
    vmm_token_shared: "vmm_token" "shared";
    vmm_ranges_shared: "vmm_ranges" "shared";
    vmm_ranges_static: "vmm_ranges" "static";
    vmm_contexts_driver: "vmm_contexts" "driver";
    vmm_ending_contexts_driver: "vmm_ending_contexts" "driver";
    vmm_green_context_driver: "vmm_green_context" "driver";
    vmm_reset_shared: "vmm_reset" "shared";
    vmm_exit_atexit_shared: "vmm_exit_atexit" "shared";
    vmm_exit_busy_shared: "vmm_exit_busy" "shared";
    vmm_exit_thread_static: "vmm_exit_thread" "static";
    vmm_fork_shared: "vmm_fork" "shared";
    vmm_fork_storm_shared: "vmm_fork_storm" "shared";
    vmm_fault_shared: "vmm_fault" "shared";
    vmm_out_of_memory_shared: "vmm_out_of_memory" "shared";
    vmm_churn_shared: "vmm_churn" "shared";
    vmm_churn_static: "vmm_churn" "static";
    vmm_churn_cap_shared: "vmm_churn_cap" "shared";
    vmm_churn_prealloc_shared: "vmm_churn_prealloc" "shared";
    vmm_churn_idle_shared: "vmm_churn_idle" "shared";
    vmm_gated_kernel_shared: "vmm_gated_kernel" "shared";
    vmm_random_calls_shared: "vmm_random_calls" "shared";
    vmm_random_calls_static: "vmm_random_calls" "static";
}

/// Frees in exit handlers, destructors and ending threads depend on the order in which libraries are
/// unloaded and threads are stopped: once is not enough. GPUPOOL_TEST_REPEAT asks for another number.
#[test]
fn processes_end_many_times() {
    let times = std::env::var("GPUPOOL_TEST_REPEAT").ok();
    let times: u32 = times.map_or(5, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("GPUPOOL_TEST_REPEAT is `{text}`, not a number"))
    });
    for row in table().iter().filter(|row| row.has("ends")) {
        for flavour in &row.flavours {
            let run = |pooled| {
                let mut run = prepared(&row.program, flavour, &row.arguments, &row.simulated);
                for (name, value) in row.pool.iter().filter(|_| pooled) {
                    run = run.env(name, value);
                }
                run.with_lib(pooled).run().expect_success()
            };
            let expected = run(row.has("pooled-only")).stdout;
            for _ in 0..times {
                let outcome = run(true);
                assert_eq!(outcome.stdout, expected, "{} {flavour}", row.id);
                let faults: Vec<&str> = (outcome.stderr.lines())
                    .filter(|line| !expected_on_stderr(row, line))
                    .collect();
                assert!(faults.is_empty(), "{} {flavour}: {faults:#?}", row.id);
            }
        }
    }
}

/// Nothing of the table, and no program, is left out.
#[test]
fn every_program_is_run() {
    let rows = table();
    let wanted: BTreeSet<(&str, &str)> = rows
        .iter()
        .flat_map(|r| r.flavours.iter().map(|f| (r.id.as_str(), f.as_str())))
        .collect();
    assert_eq!(wanted, COVERED.iter().copied().collect());
    // Those with tests of their own, and what other programs open.
    let elsewhere = [
        "attach_target",
        "commanded",
        "counting_library",
        "demo",
        "differential",
        "driver_facts",
        "guard",
        "other_needs",
        "plugin_library",
        "plugin_now",
        "forwarding_library",
        "stress",
    ];
    let folder = root().join("tests/programs");
    for entry in fs::read_dir(&folder).expect("tests/programs").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // The tests' own module lies there too.
        let source = [".c", ".cc", ".rs"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        if let Some(name) = source.filter(|name| *name != "stats") {
            assert!(
                elsewhere.contains(&name) || rows.iter().any(|r| r.program == name),
                "{name} is never run"
            );
        }
    }
}

/// The programs embed the kernels as text: it is that of kernels.ptx.
#[test]
fn kernels_header_is_that_of_the_ptx() {
    let folder = root().join("tests/programs");
    let ptx = fs::read_to_string(folder.join("kernels.ptx")).expect("kernels.ptx");
    let header = fs::read_to_string(folder.join("kernels_ptx.h")).expect("kernels_ptx.h");
    let text: String = header
        .lines()
        .filter_map(|l| l.strip_prefix("    \"")?.strip_suffix("\\n\""))
        .map(|l| {
            l.replace("\\t", "\t")
                .replace("\\\"", "\"")
                .replace("\\\\", "\\")
                + "\n"
        })
        .collect();
    assert_eq!(text, ptx, "run tests/programs/make-kernels");
}

/// The programs exist in the flavours that the table wants; says which to build if not.
#[test]
fn programs_are_built() {
    for row in table() {
        for flavour in &row.flavours {
            assert!(program(&row.program, flavour).exists());
        }
    }
}
