//! The job of docs/jobs.md under a real Slurm: a controller and two nodes on this machine. Only in
//! `cargo xtask soak`, where it takes some minutes: Slurm lets a job that was requeued wait.

use std::{
    env, fs,
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use outcrop_testing::{amount, covered, say as tell, skip};
use tempfile::TempDir;

use crate::{
    annotate::{block, prefix, root},
    common::text,
};

/// How long the job may take: three lives, and what it waits between them.
const PATIENCE: Duration = Duration::from_secs(1500);

const CONFIGURATION: &str = "
ClusterName=outcrop
SlurmctldHost=HOST(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=PLACE/munge.socket
StateSaveLocation=PLACE/state
SlurmdSpoolDir=PLACE/spool-%n
SlurmctldPidFile=PLACE/slurmctld.pid
SlurmdPidFile=PLACE/slurmd-%n.pid
SlurmctldLogFile=PLACE/slurmctld.log
SlurmdLogFile=PLACE/slurmd-%n.log
SlurmctldPort=PORT0
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
ReturnToService=2
SelectType=select/linear
MpiDefault=none
NodeName=n1 NodeHostname=HOST NodeAddr=127.0.0.1 Port=PORT1 CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname=HOST NodeAddr=127.0.0.1 Port=PORT2 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
";

/// Processes that end with the test.
struct Cluster {
    place: TempDir,
    processes: Vec<Child>,
}

impl Cluster {
    /// Starts one. An error says what is missing.
    fn start() -> Result<Self, String> {
        let place = TempDir::new().unwrap();
        let path = place.path().to_owned();
        for program in ["munged", "slurmctld", "slurmd", "sbatch", "scontrol"] {
            let found = env::split_paths("/usr/sbin:/usr/bin:/sbin:/bin").any(|folder| folder.join(program).exists());
            if !found {
                return Err(format!("{program} (Debian: slurm-wlm, munge)"));
            }
        }
        if !is_root() {
            return Err("root".to_owned());
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let mut configuration = CONFIGURATION.replace("PLACE", path.to_str().unwrap()).replace("HOST", host.trim());
        // Ports that nobody uses now.
        let ports: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        for (nth, port) in ports.iter().enumerate() {
            let number = port.local_addr().unwrap().port().to_string();
            configuration = configuration.replace(&format!("PORT{nth}"), &number);
        }
        drop(ports);
        fs::write(path.join("slurm.conf"), configuration).unwrap();
        fs::create_dir(path.join("state")).unwrap();
        fs::write(path.join("munge.key"), [7; 128]).unwrap();
        let mut cluster = Self { place, processes: Vec::new() };
        let own = |name: &str| path.join(name).display().to_string();
        run(Command::new("chmod").args(["600", &own("munge.key")]));
        let munge = [
            "--foreground".to_owned(),
            "--force".to_owned(),
            "--num-threads=1".to_owned(),
            format!("--key-file={}", own("munge.key")),
            format!("--socket={}", own("munge.socket")),
            format!("--pid-file={}", own("munged.pid")),
            format!("--log-file={}", own("munged.log")),
            format!("--seed-file={}", own("munged.seed")),
        ];
        cluster.spawn("munged", &munge);
        wait_for("munged", Duration::from_secs(30), || path.join("munge.socket").exists().then_some(()));
        cluster.spawn("slurmctld", &["-D".to_owned(), "-i".to_owned()]);
        for node in ["n1", "n2"] {
            cluster.spawn("slurmd", &["-D".to_owned(), "-N".to_owned(), node.to_owned()]);
        }
        wait_for("two idle nodes", Duration::from_secs(120), || {
            let said = cluster.say("sinfo", &["--noheader", "--format=%t %D"]);
            said.contains("idle 2").then_some(())
        });
        Ok(cluster)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = env::var("PATH").unwrap_or_default();
        command.env("SLURM_CONF", self.place.path().join("slurm.conf")).current_dir(self.place.path());
        command.env("PATH", format!("{}:{path}:/usr/sbin:/sbin", prefix().join("bin").display()));
        command
    }

    fn spawn(&mut self, program: &str, arguments: &[String]) {
        let mut command = self.command(program);
        let log = fs::File::create(self.place.path().join(format!("{program}-{}.out", self.processes.len()))).unwrap();
        command.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.processes.push(command.spawn().unwrap());
    }

    fn say(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program).args(arguments).output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The nodes first, so that they can end what runs there.
        for process in self.processes.iter_mut().rev() {
            let _ = Command::new("kill").arg(process.id().to_string()).status();
            for _ in 0..100 {
                if process.try_wait().is_ok_and(|ended| ended.is_some()) {
                    break;
                }
                thread::sleep(Duration::from_millis(100));
            }
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| status.contains("\nUid:\t0\t0"))
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{command:?}\n{said}");
    said
}

#[track_caller]
fn wait_for<T>(what: &str, patience: Duration, mut find: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(start.elapsed() < patience, "no {what} after {patience:?}");
        thread::sleep(Duration::from_millis(500));
    }
}

/// Steps that take about so long, by a trial.
fn steps(place: &Path, length: Duration) -> u64 {
    const TRIAL: u64 = 4000;
    let start = Instant::now();
    run(Command::new("./heat").args(["trial", &TRIAL.to_string()]).current_dir(place));
    (TRIAL as f64 * length.as_secs_f64() / start.elapsed().as_secs_f64()) as u64
}

#[test]
fn a_job_of_slurm_is_told_saves_and_goes_on() {
    if amount(true, false) {
        return;
    }
    let cluster = match Cluster::start() {
        Ok(cluster) => cluster,
        Err(missing) => return skip(format_args!("a job of Slurm needs {missing}")),
    };
    let place = cluster.place.path();
    let page = fs::read_to_string(root().join("docs/jobs.md")).unwrap();
    fs::write(place.join("job.sh"), block(&page, "bash")).unwrap();
    let source = root().join("bindings/c/examples/heat.c");
    let (include, library) = (prefix().join("include"), prefix().join("lib"));
    let mut compile = Command::new("gcc");
    compile.args(["-O2", "-I"]).arg(include).arg(source).arg("-o").arg(place.join("heat")).arg("-L").arg(&library);
    run(compile.args(["-loutcrop", &format!("-Wl,-rpath,{}", library.display())]));
    // Longer than one life, in which 60 of 120 seconds are left for saving.
    let steps = steps(place, Duration::from_secs(90));
    let undisturbed = run(Command::new("./heat").args(["undisturbed", &steps.to_string()]).current_dir(place));
    let undisturbed = undisturbed.lines().last().unwrap().to_owned();

    let start = Instant::now();
    let export = format!("--export=ALL,STEPS={steps}");
    let job = cluster.say("sbatch", &["--parsable", "--output=job.out", &export, "job.sh"]);
    let job = job.trim().to_owned();
    assert!(job.parse::<u64>().is_ok(), "{job}");
    let log = || fs::read_to_string(place.join("job.out")).unwrap_or_default();
    wait_for("end of the job", PATIENCE, || {
        let state = cluster.say("scontrol", &["show", "job", &job]);
        assert!(!state.contains("JobState=FAILED") && !state.contains("JobState=TIMEOUT"), "{state}\n{}", log());
        state.contains("JobState=COMPLETED").then_some(())
    });
    let said = log();
    let lives = said.matches("goes on after step").count();
    tell(format_args!("{} lives of a job in {:?}", lives + 1, start.elapsed()));
    assert!(lives >= 1 && said.matches("the time is nearly over").count() == lives, "{said}");
    for step in said.lines().filter_map(|line| line.strip_prefix("ends after step ")) {
        assert!(said.contains(&format!("goes on after step {step}\n")), "nothing is lost: {said}");
    }
    assert_eq!(said.lines().last(), Some(&*undisturbed), "{said}");
    covered("lives of a job of Slurm", lives as u64 + 1);
}
