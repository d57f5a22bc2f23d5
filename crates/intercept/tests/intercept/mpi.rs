//! Programs of several processes that write one file, and a simulation.

use outcrop_testing::does_not_apply;

use crate::scene::{compare, has};

/// Each rank writes its part of a file, alone, together, and through views, and reads others'.
const PROGRAM: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
enum { COUNT = 100000 };
int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    double *values = malloc(COUNT * sizeof *values), sum = 0, total;
    for (int i = 0; i < COUNT; i++) values[i] = rank * COUNT + i;
    MPI_Offset at = (MPI_Offset)rank * COUNT * sizeof *values;
    MPI_File file;
    int create = MPI_MODE_CREATE | MPI_MODE_RDWR;
    if (MPI_File_open(MPI_COMM_WORLD, "alone", create, MPI_INFO_NULL, &file)) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_File_write_at(file, at, values, COUNT, MPI_DOUBLE, MPI_STATUS_IGNORE);
    MPI_File_sync(file); MPI_Barrier(MPI_COMM_WORLD); MPI_File_sync(file);
    MPI_File_read_at(file, (MPI_Offset)((rank + 1) % ranks) * COUNT * sizeof *values, values, COUNT, MPI_DOUBLE, MPI_STATUS_IGNORE);
    for (int i = 0; i < COUNT; i++) sum += values[i];
    MPI_Reduce(&sum, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("sum %.0f\n", total);
    MPI_File_close(&file);
    if (MPI_File_open(MPI_COMM_WORLD, "together", create, MPI_INFO_NULL, &file)) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_File_write_at_all(file, at, values, COUNT, MPI_DOUBLE, MPI_STATUS_IGNORE);
    MPI_File_set_size(file, (MPI_Offset)(ranks + 1) * COUNT * sizeof *values);
    MPI_File_close(&file);
    MPI_Datatype strided;
    MPI_Type_vector(COUNT / 100, 100, 100 * ranks, MPI_DOUBLE, &strided);
    MPI_Type_commit(&strided);
    if (MPI_File_open(MPI_COMM_WORLD, "strided", create, MPI_INFO_NULL, &file)) MPI_Abort(MPI_COMM_WORLD, 3);
    MPI_File_set_view(file, (MPI_Offset)rank * 100 * sizeof *values, MPI_DOUBLE, strided, "native", MPI_INFO_NULL);
    MPI_File_write_all(file, values, COUNT, MPI_DOUBLE, MPI_STATUS_IGNORE);
    MPI_File_close(&file);
    MPI_Finalize();
    return 0;
}
"#;

/// How ranks are started on a machine with fewer cores, also by root. Libraries of theirs write to
/// the home directory.
const MPIRUN: &str = "TMPDIR=/tmp OMPI_MCA_btl_vader_single_copy_mechanism=none \
    mpirun --allow-run-as-root --oversubscribe -n";

#[test]
fn ranks_write_one_file_with_mpi() {
    if !has(&["mpicc", "mpirun"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("a.c");
    std::fs::write(&source, PROGRAM).unwrap();
    let mut command = std::process::Command::new("mpicc");
    assert!(
        command.args(["-w", "-O1", "-o", "a.out"]).arg(&source).current_dir(&directory).status().unwrap().success()
    );
    let program = directory.path().join("a.out");
    let program = program.display();
    compare(
        "",
        &format!(
            "export HOME=/tmp; {MPIRUN} 4 --mca io ompio {program}; mkdir romio; cd romio; {MPIRUN} 4 --mca io romio321 {program}"
        ),
    );
}

#[test]
fn lammps_writes_restart_files() {
    let found = std::process::Command::new("sh").args(["-c", "command -v lmp"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        return does_not_apply("LAMMPS is not installed");
    }
    let input = "units lj
lattice fcc 0.8442
region box block 0 8 0 8 0 8
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
thermo 10
restart 10 a.restart b.restart
dump 1 all atom 10 dump.lammpstrj
run 40
write_restart end.restart
write_data end.data";
    let again = "read_restart end.restart
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
fix 1 all nve
restart 10 step.*
run 20";
    let script = format!(
        "export HOME=/tmp; printf '%s\n' '{input}' > in; printf '%s\n' '{again}' > again
         lmp -in in -log none -screen none; {MPIRUN} 2 lmp -in again -log none -screen none; ls"
    );
    compare("", &script);
}
