"""The kernels: bytes of records to columns and back, compiled or with numpy, without Spark."""
