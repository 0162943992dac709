#!/usr/bin/perl
# Exercises: a rung of a ladder with the lines between two marks taken out, and what grades what a reader puts there.
#   exercise.pl cut NAME             writes exercises/..., the file with the hole, unless it is there
#   exercise.pl grade NAME [FILE]    FILE: exercises/... unless given
#   exercise.pl all DIR              every file below DIR that is named like an exercise's; a table
#   exercise.pl proof [PART]         each rung passes, each hole fails, each of mistakes.txt fails as it says there: of those
#                                    every PART-th, from GRADE_TURN on
# GRADE_COMPILE, GRADE_LINK: the commands, from emulate.mk.
use strict;
use warnings;
use File::Basename;
use File::Find;
use File::Path qw(make_path);
use Text::Wrap qw(wrap);

my $begin = '// The exercise begins here.';
my $end   = '// The exercise ends here.';

sub slurp { my ($file) = @_; open(my $in, '<', $file) or die "exercise.pl: $file: $!\n"; local $/; return scalar <$in>; }
sub spew {
    my ($file, $text) = @_;
    make_path(dirname($file));
    open(my $out, '>', $file) or die "exercise.pl: $file: $!\n";
    print $out $text;
    close($out) or die "exercise.pl: $file: $!\n";
}

# ---- the exercises: exercises.txt

my (@names, %tasks);
for my $block (split /^== /m, slurp('dev/exercises/exercises.txt')) {
    next unless $block =~ s/\A([\w]+-\d+): (.*)\n//;
    my ($name, %task) = ($1, title => $2);
    push @{ $task{$1} }, $2 =~ s/\n  / /gr while $block =~ /^(\w+): (.*(?:\n  .*)*)/mg;
    push @names, $name;
    $tasks{$name} = \%task;
}
sub known { my ($name) = @_; $tasks{ $name // '' } or die "no exercise " . ($name // '') . ". There are: @names\n"; }
sub file_of { my ($name) = @_; return "$1_v$2.cuh" if $name =~ /^(.*)-(\d+)$/; die; }
sub rung_of {
    my ($name) = @_;
    my ($op, $rung) = $name =~ /^(.*)-(\d+)$/;
    return "llmc/ops/attention/ladder/$1/v$rung.cu" if $op =~ /^attention_(.*)/;
    return 'llmc/layernorm/ladder/' . ($op =~ /^residual/ ? 'residual' : $op =~ s/layernorm_//r) . "/v$rung.cuh";
}

# what calls the reader's function, in the namespace of the rung
sub call_of {
    my ($name) = @_;
    my ($op, $rung) = $name =~ /^(.*)-(\d+)$/;
    my $T = sub { join(', ', map { /:/ ? "c.get<acc_t<T>>(\"" . s/://r . '")' : "c.get<T>(\"$_\")" } @_) };
    my %calls = (
        layernorm_forward => $T->(qw(out mean: rstd: inp weight bias)) . ', c.N, c.C, c.eps, nullptr, c.block',
        residual_layernorm_forward =>
            $T->(qw(residual out mean: rstd: inp inp2 weight bias)) . ', c.N, c.C, c.eps, nullptr, c.block',
        layernorm_backward => $T->(qw(dinp dweight dbias scratch dout inp weight mean: rstd:)) . ', c.N, c.C, nullptr, c.block',
        attention_forward  => 'c.get<__nv_bfloat16>("out"), c.get<float>("lse"), c.get<void>("scratch"), '
            . 'c.get<const __nv_bfloat16>("qkv"), (int)(c.N / c.T), c.T, c.C / 64, nullptr',
    );
    my $typed = $op !~ /^attention/;
    my $call  = "v${rung}::$op" . ($typed ? '<T>' : '') . "($calls{$op})";
    my $bytes = $op eq 'layernorm_backward' ? "v${rung}::layernorm_backward_scratch<float>(c.N, c.C)"
        : $typed ? '0' : "v${rung}::attention_forward_scratch((int)(c.N / c.T), c.T, c.C / 64)";
    return <<"END";

#line 1 "the call"
#include "dev/exercises/grader.h"
namespace llmc::exercise {
template <typename T> void call_with(const Call& c) { $call; }
void call(const Call& c) {
    if (c.dtype == Dtype::kFp32) { call_with<float>(c); } else { call_with<__nv_bfloat16>(c); }
}
size_t scratch_bytes(const Call& c) { return $bytes; }
}
END
}

sub hole {
    my ($name) = @_;
    my $task = known($name);
    my $text = slurp(rung_of($name));
    $text =~ s/\A(?:\/\/.*\n)+// or die "exercise.pl: $name: no header\n";
    $text =~ s/^([ \t]*)\Q$begin\E\n(.*?)(^[ \t]*\Q$end\E\n)/$1$begin\n\n$3/ms or die "exercise.pl: $name: no marks\n";
    my $lines = ($2 =~ tr/\n//);
    my @head  = ("Exercise $name: $task->{title}");
    for my $part (qw(idea given moves)) { push @head, ucfirst($part) . ': ' . join(' ', @{ $task->{$part} }); }
    push @head, "Write: what is missing between the two marks (the rung has $lines lines there); then: make grade-$name";
    push @head, 'Hints: at the end, each for when the one before was not enough.';
    my $all = join('', map { wrapped($_) } @head) . $text;
    my $number = 0;
    $all .= "\n// #region Hint " . ++$number . "\n" . wrapped($_) . "// #endregion\n" for @{ $task->{hint} };
    return $all;
}
sub wrapped {
    local ($Text::Wrap::columns, $Text::Wrap::unexpand) = (111, 0);
    return wrap('// ', '//     ', split(' ', $_[0])) . "\n";
}

# ---- grading

# ("what is said", passed?)
sub grade {
    my ($name, $file, $folder) = @_;
    known($name);
    return ("$name [failure] a quotation mark in the name of $file\n", 0) if $file =~ /'/;
    my $text = slurp($file);
    if ($text =~ /^[ \t]*\Q$begin\E\n(.*?)^[ \t]*\Q$end\E\n/ms) {
        my $yours = $1;
        $yours =~ s{//[^\n]*}{}g;
        return ("$name [not written]: not written yet: $file has nothing between its marks.\n", 0) if $yours !~ /\S/;
    }
    make_path($folder);
    my $source = "$folder/" . file_of($name) =~ s/cuh$/cu/r;
    my $read = `perl dev/emulate/rewrite.pl '$file' 2>&1`;
    return ("$name [does not compile]: $read", 0) if $? != 0;
    spew($source, $read . call_of($name));
    my $limits = 'ulimit -t 120 -f 400000; ulimit -v 6000000';
    my $said = `($limits; exec $ENV{GRADE_COMPILE} -c $source -o $folder/reader.o) 2>&1`;
    if ($? != 0) {
        my @errors = (grep({ /error/ } split /\n/, $said), $said)[0 .. 3];
        return ("$name [does not compile]:\n" . join('', map {"  $_\n"} grep { defined } @errors), 0);
    }
    $said = `($ENV{GRADE_LINK} $folder/reader.o -o $folder/grade) 2>&1`;
    return ("$name [does not link]: $said", 0) if $? != 0;
    my ($most, $shapes) = map { "@{ $tasks{$name}{$_} }" } qw(most shapes);
    # of the kernel's process: seconds of CPU, which a busy machine does not use up (at the first limit it says that it does not
    # end, see watch.cpp), KB of address space, blocks of a file
    my $run = "exec timeout -s KILL 40 $folder/grade $name $most $shapes 3>$folder/said >$folder/output 2>&1 </dev/null";
    system('sh', '-c', "ulimit -H -t 20; ulimit -S -t 10; ulimit -v 6000000; ulimit -f 4000; $run");
    my ($status, @said) = ($?, split /\n/, slurp("$folder/said"));
    my @notes = map { s/^\[note\] /  /r } grep { /^\[note\]/ } @said;
    my @wrong = grep { !/^\[note\]/ } @said;
    my $tried = (split ' ', $shapes) . ' shapes';  # said at the very end
    @wrong = ("[failure] its process ended early (status $status): see $folder/output")
        if !@wrong && !grep { /^\[note\] $tried$/ } @said;
    return (join('', map { "$name " . with_lines($_, "$folder/grade") . "\n" } @wrong), 0) if @wrong;
    my ($next) = "@names " =~ /\Q$name\E (\S+) /;
    push @notes, "  next: make exercise-$next" if $next;
    return (join("\n", "$name: passed.", @notes, ''), 1);
}
# On a GPU, with nvcc: the shootout's line of what passed, and of the rung; else nothing. Attention's is a file of its own.
sub timed {
    my ($name, $file) = @_;
    my ($op, $rung) = $name =~ /^(.*layernorm.*)-(\d+)$/ or return '';
    return '' if system('{ nvidia-smi -L | grep -q ^GPU && command -v nvcc; } >/dev/null 2>&1') != 0;
    my $said = "  on this GPU, 8192x768 bf16: us, 20 %, 80 %, GB/s, % of the roof\n";
    spew("build/only/v$rung$name/" . rung_of($name), slurp($file));
    for ([yours => $name], ['the rung' => '']) {
        my ($who, $exercise) = @$_;
        system("env -u MAKEFLAGS -u MAKELEVEL make -s ONLY=v$rung EXERCISE=$exercise dev/cuda/$op >&2") == 0 or return '';
        my ($row) = `dev/cuda/$op v$rung --shape 8192x768 --dtype bf16` =~ /^v$rung .*?(( +[\d.]+){5})/m;
        $said .= sprintf("  %-9s%s\n", $who, $row // " was not timed: dev/cuda/$op v$rung says why");
    }
    return $said;
}
# "x_v3.cuh:41" for {line:ADDRESS}: of what was inlined there the line in the reader's file
sub with_lines {
    my ($text, $program) = @_;
    my $line = sub {
        my @lines = map { s{.*/|\s.*}{}gr } split /\n/, `addr2line -i -e $program 0x$_[0]`;
        return (grep { /_v\d/ } @lines)[-1] // $lines[0];
    };
    return $text =~ s/\{line:(\w+)\}/$line->($1)/ger;
}

# jobs side by side: each is [label, work], whose work returns text and success; results in the jobs' order
sub side_by_side {
    my ($jobs, $done) = @_;
    my $most = $ENV{GRADE_JOBS} || `nproc` + 0;
    my (%running, @results);
    my ($next, $shown) = (0, 0);
    while ($shown < @$jobs) {
        while ($next < @$jobs && keys %running < $most) {
            my $number = $next++;
            my $pid = fork() // die "fork: $!\n";
            if ($pid == 0) {
                my ($text, $ok) = $jobs->[$number][1]->("build/exercises/job$number");
                spew("build/exercises/job$number/said", $text);
                exit($ok ? 0 : 1);
            }
            $running{$pid} = $number;
        }
        my $pid = wait();
        my $number = delete $running{$pid};
        $results[$number] = $? == 0 ? 1 : 0;
        while ($shown < @$jobs && defined $results[$shown]) {
            $done->($jobs->[$shown][0], slurp("build/exercises/job$shown/said"), $results[$shown]);
            $shown++;
        }
    }
}

# ---- the proof: mistakes.txt

# [name, what is wrong, what must be said, [lines, replacement] ...]
sub mistakes {
    my ($name, @all);
    for (split /\n/, slurp('dev/exercises/mistakes.txt')) {
        if    (/^== (\S+)$/) { $name = $1; }
        elsif (/^(\S.*) => (.*)$/ && $name) { push @all, [$name, $1, $2]; }
        elsif (/^    (\S.*) ~>(?: (.*))?$/ && $name) { push @{ $all[-1] }, [$1, $2 // '']; }
    }
    return @all;
}
sub planted {
    my ($text, @changes) = @_;
    for my $change (@changes) {
        my ($old, $new) = @$change;
        my $pattern = join('\s+', map { quotemeta } split ' ', $old);
        my $count = () = $text =~ /$pattern/g;
        my ($where) = $text =~ /\Q$begin\E(.*?)\Q$end\E/s;
        die "exercise.pl: mistakes.txt: stands $count times in the rung, not once: $old\n" if $count != 1;
        die "exercise.pl: mistakes.txt: not what a reader writes: $old\n" if $where !~ /$pattern/;
        $text =~ s/$pattern/$new/;
    }
    return $text;
}

sub proof {
    my ($part) = @_;
    my @jobs;
    my $job = sub {
        my ($name, $what, $expected, $text) = @_;
        push @jobs, ["$name: $what", sub {
            my ($folder) = @_;
            my $file = "$folder/" . file_of($name);
            spew($file, $text);
            my ($said, $passed) = grade($name, $file, $folder);
            my $right = $expected eq 'passes' ? $passed : !$passed && index($said, $expected) >= 0;
            return ($said, $right);
        }];
    };
    for my $name (@names) {
        $job->($name, 'the rung', 'passes', slurp(rung_of($name)));
        $job->($name, 'the hole', 'not written yet', hole($name));
    }
    my ($turn, @mistakes) = (($ENV{GRADE_TURN} // 0) % $part, mistakes());
    for my $number (grep { $_ % $part == $turn } 0 .. $#mistakes) {
        my ($name, $what, $expected, @changes) = @{ $mistakes[$number] };
        $job->($name, $what, $expected, planted(slurp(rung_of($name)), @changes));
    }
    my ($passed, $failed) = (0, 0);
    side_by_side(\@jobs, sub {
        my ($label, $said, $right) = @_;
        $right ? $passed++ : $failed++;
        my $first = $said =~ /(\[[^\n]*|: passed)/ ? $1 : $said;
        $first =~ s/\n.*//s;
        printf "%s %s\n    %s\n", $right ? 'ok    ' : 'FAILED', $label, $right ? substr($first, 0, 230) : $said;
    });
    print "$passed passed, $failed failed, 0 skipped\n";
    exit($failed > 0 || $passed == 0);
}

sub grade_all {
    my ($folder) = @_;
    die "SUBMISSIONS: '$folder' is no folder: make grade-all SUBMISSIONS=FOLDER\n" unless -d $folder;
    my %by_file = map { file_of($_) => $_ } @names;
    my @files;
    find({ no_chdir => 1, wanted => sub { push @files, $_ if -f $_ && $by_file{ basename($_) } } }, $folder);
    my @jobs = map { my $file = $_; [$file, sub { grade($by_file{ basename($file) }, $file, $_[0]) }] } sort @files;
    my $passed = 0;
    side_by_side(\@jobs, sub {
        my ($label, $said, $ok) = @_;
        $passed += $ok;
        $said = substr($said =~ s/^[^\[:]*//r =~ s/\s*\n\s*/ /gr, 0, 300);
        printf "%-44s %s  %s\n", $label, $ok ? 'passed' : 'failed', $ok ? '' : $said;
    });
    printf "%d of %d passed\n", $passed, scalar @jobs;
}

my ($what, @more) = @ARGV;
$what //= '';
if ($what eq 'cut') {
    my $file = 'exercises/' . file_of($more[0]) if known($more[0]);
    die "$file is there, maybe with your work: move it away first, or delete it.\n" if -e $file;
    spew($file, hole($more[0]));
    print "Wrote $file. Write what is missing, then: make grade-$more[0]\n";
} elsif ($what eq 'grade') {
    known($more[0]);
    my $file = $more[1] // 'exercises/' . file_of($more[0]);
    die "No file $file: make exercise-$more[0] writes it.\n" unless -e $file;
    my ($said, $passed) = grade($more[0], $file, 'build/exercises/' . $more[0]);
    print $said, $passed ? timed($more[0], $file) : '';
    exit(!$passed);
} elsif ($what eq 'all') {
    grade_all(@more);
} elsif ($what eq 'proof') {
    proof($more[0] // 1);
} else {
    die "exercise.pl cut NAME | grade NAME [FILE] | all DIR | proof [PART]\n";
}
