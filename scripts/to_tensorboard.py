#!/usr/bin/env python3
"""Runs for TensorBoard (pip install tensorboard), also while they go on:

    scripts/to_tensorboard.py runs/mine                 what is there: writes runs/mine/tensorboard
    scripts/to_tensorboard.py runs/mine --follow &      as it comes, until the run ends
    tensorboard --logdir runs

A second call replaces what an earlier one has written. A run that went on from a checkpoint shows each
step once.
"""
import argparse
import glob
import os

try:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
except ImportError as missing:
    raise SystemExit(f"to_tensorboard: {missing}: pip install tensorboard") from None

from follow_log import log_of, read, scalars

SUFFIX = ".plumb"  # of the files that are replaced


def text_value(tag, text):
    tensor = TensorProto(dtype=DT_STRING, tensor_shape=TensorShapeProto(), string_val=[text.encode()])
    return Summary.Value(tag=tag, metadata=create_summary_metadata(tag, ""), tensor=tensor)


class Converter:
    """begins to write with the first line: of a run that is not there no folder is made"""

    def __init__(self, folder):
        self.folder, self.writer = folder, None
        self.given = {}  # the last step of each chart

    def begin(self):
        folder = self.folder
        for old in glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*" + SUFFIX)):
            os.remove(old)
        self.writer = EventFileWriter(folder, filename_suffix=SUFFIX)

    def add(self, row):
        if self.writer is None:
            self.begin()
        step, time = row["step"], row.get("time") or 0
        if row.get("event") == "resume":  # what was written behind that step does not count any more
            start = Event(wall_time=time, step=step + 1, session_log=SessionLog(status=SessionLog.START))
            self.writer.add_event(start)
            self.given = {tag: min(last, step) for tag, last in self.given.items()}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(row)]
        if row.get("event") == "sample":
            values = [text_value("sample", "    " + row["text"].replace("\n", "\n    "))]
        # a validation just before a checkpoint is done again after it
        values = [value for value in values if self.given.get(value.tag, -1) < step]
        self.given.update({value.tag: step for value in values})
        if values:
            self.writer.add_event(Event(wall_time=time, step=step, summary=Summary(value=values)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="folder of a run, or a log.jsonl")
    parser.add_argument("--out", help="default: RUN/tensorboard")
    parser.add_argument("--follow", action="store_true", help="go on until the run ends")
    args = parser.parse_args()
    path = log_of(args.run)
    folder = args.out or os.path.join(os.path.dirname(path), "tensorboard")
    converter = Converter(folder)
    try:
        for row in read(path, args.follow):
            if row is not None:
                converter.add(row)
            elif converter.writer is not None:
                converter.writer.flush()
    except KeyboardInterrupt:
        pass
    except OSError as error:
        raise SystemExit(f"to_tensorboard: {error}")
    if converter.writer is None:
        raise SystemExit(f"to_tensorboard: {path}: no line of a run in it")
    converter.writer.close()
    print("wrote", folder)


if __name__ == "__main__":
    main()
