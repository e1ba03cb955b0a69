"""What runs inside a program that saves itself.

- :mod:`gpusnap.inprocess.itself` is the call, which returns twice;
- :mod:`gpusnap.inprocess.callbacks` are functions that the program has called around it;
- :mod:`gpusnap.inprocess.steps` is the call for training loops;
- :mod:`gpusnap.inprocess.aside` makes it work for the first process of a container.

The names that are for programs are those of :mod:`gpusnap` itself.
"""
