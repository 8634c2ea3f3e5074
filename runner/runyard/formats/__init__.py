"""Message formats of providers: conversion of their messages to runyard's and back. Pure functions, without I/O."""
